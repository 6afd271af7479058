// RunClaim: the output folder of a run is one job's at a time.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/output.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// What `file` stands for, such as the folder that it lies in, is written by one process at a time: it holds the file's
// lock, which goes with it however it ends, and the file says who it is. Other hosts that share the file notice it where
// the file system passes flock(2) on, as NFS does since version 3 and Lustre does when it is mounted so. Where there are
// no locks, the processes of one host still notice each other, by what the file says.
class WriterClaim {
 public:
  // `what`: "output runs/a", for messages. Throws InvalidArgument, in one line, where another process has it; one of
  // this process's own job, an attempt before this one that may still be about to end, is waited for, 30 s at most, and
  // 120 s where it was on another host. One that stands still is not waited for; where it is of this host and
  // this process's launcher, whose others have gone on without it, it has lost its claim. Throws SystemError where the file cannot be made.
  WriterClaim(const std::filesystem::path& file, const std::string& what, const EnvLookup& env);
  WriterClaim(const WriterClaim&) = delete;
  WriterClaim& operator=(const WriterClaim&) = delete;
  ~WriterClaim();  // removes the file where it is this one's

  // False: the file system has no locks, and a second job on another host would not be noticed.
  bool is_held() const { return held_; }

  // Throws CheckpointError, in one line, where the file is no longer this one's: before something is written that another
  // may have begun to write. Costs a look at the file.
  void check() const;

 private:
  void say_who(const std::string& job, const std::string& launcher);

  std::filesystem::path file_;
  std::string what_;
  UniqueFd fd_;
  bool held_ = false;
  bool own_ = false;  // the file is to go with this
};

// A WriterClaim on the file `.lock` of the folder.
class RunClaim {
 public:
  // Makes the folder where it is missing, and tries what a run will need there (OutputFolder, try_series()), whose
  // leftovers of a killed process go. Throws InvalidArgument, in one line, where that cannot be, and as WriterClaim.
  RunClaim(const std::filesystem::path& folder, const EnvLookup& env);
  RunClaim(const RunClaim&) = delete;
  RunClaim& operator=(const RunClaim&) = delete;
  ~RunClaim() = default;  // removes the file, and the folder where it was made and nothing is in it

  bool is_held() const { return claim_.is_held(); }
  void check() const { claim_.check(); }  // WriterClaim::check()

 private:
  OutputFolder output_;  // goes last
  WriterClaim claim_;
};

}  // namespace lockstep
