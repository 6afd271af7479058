// LogFolder: the files of a run, laid out as torchrun does: DIR/<run id>_XXXXXX/attempt_<n>/<local
// rank>/{stdout,stderr}.log.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::launch {

class LogFolder {
 public:
  // Makes the run's folder in `dir`, which is made too if absent; "" means a new folder in the
  // system's temporary folder.
  // Throws: LaunchError that names the path, SystemError for a full disk.
  LogFolder(const std::string& dir, const std::string& run_id);

  const std::filesystem::path& path() const { return path_; }
  // A new folder for the rank's attempt, or for the next one of which it has none yet; makes it.
  std::filesystem::path rank_folder(int attempt, int local_rank) const;

 private:
  std::filesystem::path path_;
};

// Opens a log file for appending, emptied first.
// Throws: LaunchError, SystemError.
UniqueFd open_log(const std::filesystem::path& path);

}  // namespace lockstep::inline v0::launch
