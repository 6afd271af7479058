#include "lockstep/core/named_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {
namespace {

InvalidArgument unreadable(const std::filesystem::path& path, int errnum) {
  return InvalidArgument(system_error("cannot read " + path.string(), errnum).what());
}

}  // namespace

UniqueFd open_named_file(const std::filesystem::path& path) {
  // Without blocking on a FIFO that has no writer.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info{};
  if (!file || ::fstat(file.get(), &info) != 0) throw unreadable(path, errno);
  if (S_ISDIR(info.st_mode))
    throw InvalidArgument("cannot read " + path.string() + ": it is a directory; give a file");
  if (!S_ISREG(info.st_mode))
    throw InvalidArgument("cannot read " + path.string() + ": it is no ordinary file; give one");
  return file;
}

std::string read_named_file(const std::filesystem::path& path) {
  const UniqueFd file = open_named_file(path);
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw unreadable(path, errno);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

std::string path_from_here(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path near = std::filesystem::relative(path, error);
  if (error || near.empty() || near.native().size() >= path.native().size()) return path.string();
  return near.has_parent_path() ? near.string() : "./" + near.string();
}

}  // namespace lockstep::inline v0
