// RunClaim: reserves the output folder of a run for one job at a time.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"
#include "lockstep/core/output.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// Reserves something, such as the folder of `file`, for one writing process. The process holds the
// lock of the file, which ends with the process, and the file names it. Other hosts notice the lock
// if the file system forwards flock(2), as NFS does since version 3 and Lustre does if it is
// mounted so. Without locks the processes of one host still notice each other by the text of the
// file.
class LOCKSTEP_API WriterClaim {
 public:
  // `what`: "output runs/a", for messages. If an earlier attempt of this process's own job has the
  // claim, it may be about to end: the constructor waits up to 30 s for it, or up to 120 s if it
  // was on another host. It does not wait for a stopped process. A stopped process of the same host
  // and launcher loses its claim, since the other ranks have continued without it.
  // Throws: InvalidArgument of one line if another process has the claim; SystemError if the file
  // cannot be made.
  WriterClaim(const std::filesystem::path& file, const std::string& what, const EnvLookup& env);
  WriterClaim(const WriterClaim&) = delete;
  WriterClaim& operator=(const WriterClaim&) = delete;
  ~WriterClaim();  // removes the file if it is this claim's

  // False: the file system has no locks, so a second job on another host is not noticed.
  bool is_held() const { return held_; }

  // To be called before writing something that another process may have begun to write.
  // Throws: CheckpointError of one line if the file is no longer this claim's.
  // Cost: one look at the file.
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
class LOCKSTEP_API RunClaim {
 public:
  // Makes the folder if it is missing, tries what a run will need there (OutputFolder,
  // try_series()), and removes what a killed process has left of such a trial.
  // Throws: InvalidArgument of one line if that fails; and as WriterClaim.
  RunClaim(const std::filesystem::path& folder, const EnvLookup& env);
  RunClaim(const RunClaim&) = delete;
  RunClaim& operator=(const RunClaim&) = delete;
  ~RunClaim() = default;  // removes the file, and a folder that was made here and is empty

  bool is_held() const { return claim_.is_held(); }  // this process has the folder
  void check() const { claim_.check(); }             // WriterClaim::check()

 private:
  OutputFolder output_;  // goes last
  WriterClaim claim_;
};

}  // namespace lockstep::inline v0
