#include "lockstep/core/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace lockstep::inline v0 {

FileLock try_lock(int fd) noexcept {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno == EWOULDBLOCK ? FileLock::kTaken : FileLock::kNone;
  }
  return FileLock::kHeld;
}

}  // namespace lockstep::inline v0
