#include "lockstep/data/internal/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::data {
namespace {

// A new file beside `path`; unlinked on destruction unless it was renamed.
class AsideFile {
 public:
  explicit AsideFile(const std::filesystem::path& path)
      : target_(path.string()), name_(target_ + ".XXXXXX") {
    fd_.reset(::mkostemp(name_.data(), O_CLOEXEC));
    if (!fd_) fail("cannot create a file beside");
  }
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  ~AsideFile() {
    if (!renamed_) ::unlink(name_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("cannot write");
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }

  void publish() {
    if (::fchmod(fd_.get(), 0666 & ~current_umask()) != 0) fail("cannot set the mode of");
    if (::fsync(fd_.get()) != 0) fail("cannot sync");
    if (::rename(name_.c_str(), target_.c_str()) != 0) fail("cannot rename a file to");
    renamed_ = true;
    // The rename itself must reach the disk too. Some file systems cannot sync a directory; that is
    // no failure.
    std::string parent = std::filesystem::path(target_).parent_path().string();
    const UniqueFd dir(
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir) ::fsync(dir.get());
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw system_error(std::string(what) + " " + target_, errno);
  }

  // umask(2) can only be read by setting it, which would race with other threads; /proc tells
  // without.
  static mode_t current_umask() {
    mode_t mask = 022;
    if (std::FILE* status = std::fopen("/proc/self/status", "re")) {
      char line[256];
      unsigned value = 0;
      while (std::fgets(line, sizeof line, status)) {
        if (std::sscanf(line, "Umask: %o", &value) == 1) {
          mask = value;
          break;
        }
      }
      std::fclose(status);
    }
    return mask;
  }

  std::string target_;
  std::string name_;
  UniqueFd fd_;
  bool renamed_ = false;
};

}  // namespace

void write_file_atomically(const std::filesystem::path& path,
                           std::initializer_list<std::span<const std::byte>> parts) {
  AsideFile file(path);
  for (const auto part : parts) file.write(part);
  file.publish();
}

}  // namespace lockstep::data
