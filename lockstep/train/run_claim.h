// RunClaim: the output folder of a run is one job's at a time.
#pragma once

#include <filesystem>

#include "lockstep/core/env.h"
#include "lockstep/core/output.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// A lock on the file `.lock` of the folder, held by the process that writes there, which names itself in it. It goes with
// the process, however that ends. Other hosts that share the folder notice it where the file system passes flock(2) on,
// as NFS does since version 3 and Lustre does when it is mounted so.
class RunClaim {
 public:
  // Makes the folder where it is missing, and tries what a run will need there (OutputFolder, try_series()). Throws
  // InvalidArgument, in one line, where that cannot be, or where another process has the folder; one of this process's
  // own job, an attempt before this one that may still be about to end, is waited for, 30 s at most, and 120 s where it
  // was on another host.
  RunClaim(const std::filesystem::path& folder, const EnvLookup& env);
  RunClaim(const RunClaim&) = delete;
  RunClaim& operator=(const RunClaim&) = delete;
  ~RunClaim();  // removes the file, and the folder where it was made and nothing is in it

  // False: the file system has no locks, and a second job would not be noticed.
  bool is_held() const { return held_; }

 private:
  void take(const std::filesystem::path& folder, const EnvLookup& env);

  OutputFolder output_;  // goes last
  std::filesystem::path file_;
  UniqueFd fd_;
  bool held_ = false;
};

}  // namespace lockstep
