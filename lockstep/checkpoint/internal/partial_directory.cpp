#include "lockstep/checkpoint/internal/partial_directory.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>  // for renameat2
#include <random>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::internal {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, int errnum) {
  throw system_error("cannot write checkpoint " + path.string(), errnum);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, error.value());
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, errno);
}

}  // namespace

fs::path beside(const fs::path& path, const char* suffix) {
  fs::path other = path.has_filename() ? path : path.parent_path();  // "dir/" is "dir"
  other += suffix;
  return other;
}

void put_in_place(const fs::path& fresh, const fs::path& path) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  // There is no previous checkpoint, or the file system or a sandbox does not support the call.
  const int error = errno;
  if (error != ENOENT && error != EINVAL && error != ENOSYS && error != EPERM &&
      error != EOPNOTSUPP)
    fail(path, error);
  const fs::path previous = beside(path, kPrevious);
  std::error_code unknown;
  // For an abandoned attempt: the existing content stays.
  if (!fs::exists(fs::symlink_status(fresh, unknown))) fail(path, ENOENT);
  if (!fs::exists(fs::symlink_status(path, unknown))) {
    rename_or_fail(fresh, path);
    remove_tree(previous);
    return;
  }
  remove_tree(previous);
  rename_or_fail(path, previous);
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int refused = errno;
    ::rename(previous.c_str(), path.c_str());
    fail(path, refused);
  }
  remove_tree(previous);
}

std::string new_attempt() {
  std::random_device random;
  char text[20];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

fs::path attempt_directory(const fs::path& path, const std::string& attempt) {
  return beside(path, ".partial") / attempt;
}

PartialDirectory::PartialDirectory(fs::path path, const std::string& attempt)
    : path_(beside(path, "")), directory_(attempt_directory(path, attempt)) {
  remove_tree(directory_.parent_path());
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) fail(path_, error.value());
}

PartialDirectory::~PartialDirectory() {
  // After publish() this is the previous checkpoint; the next writer removes a leftover.
  std::error_code error;
  fs::remove_all(directory_, error);
  fs::remove(directory_.parent_path(), error);  // unless another attempt is in it
}

void PartialDirectory::publish() {
  put_in_place(directory_, path_);
  sync_directory(path_.parent_path());
}

}  // namespace lockstep::inline v0::internal
