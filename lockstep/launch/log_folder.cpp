#include "lockstep/launch/log_folder.h"

#include <fcntl.h>
#include <stdlib.h>

#include <cerrno>
#include <system_error>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

// Distinguishes a bad path, which is a user's mistake, from a full system, which is temporary.
[[noreturn]] void fail(const std::string& what, int errnum) {
  const SystemError error = system_error(what, errnum);
  for (const int passing : {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EIO}) {
    if (errnum == passing) throw error;
  }
  throw LaunchError(error.what());
}

std::filesystem::path make_unique_folder(const std::filesystem::path& start) {
  std::string name = start.string() + "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) fail("cannot make the log folder " + name, errno);
  return name;
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("cannot make the log folder " + path.string(), error.value());
}

}  // namespace

LogFolder::LogFolder(const std::string& dir, const std::string& run_id) {
  std::filesystem::path root = dir;
  if (dir.empty()) {
    root = make_unique_folder(std::filesystem::temp_directory_path() / "lockstep_");
  } else {
    make_folders(root);
  }
  std::string safe_id = run_id;
  for (char& c : safe_id) {
    if (c == '/') c = '_';
  }
  path_ = make_unique_folder(root / (safe_id + "_"));
}

std::filesystem::path LogFolder::rank_folder(int attempt, int local_rank) const {
  const auto folder_of = [&](int number) {
    return path_ / ("attempt_" + std::to_string(number)) / std::to_string(local_rank);
  };
  while (std::filesystem::exists(folder_of(attempt))) ++attempt;
  std::filesystem::path folder = folder_of(attempt);
  make_folders(folder);
  return folder;
}

UniqueFd open_log(const std::filesystem::path& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file) fail("cannot open the log file " + path.string(), errno);
  return file;
}

}  // namespace lockstep::inline v0::launch
