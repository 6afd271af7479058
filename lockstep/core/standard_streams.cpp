#include "lockstep/core/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::inline v0 {

void open_standard_streams() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number, which is this one. Children inherit it.
    [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
  }
}

}  // namespace lockstep::inline v0
