#include "lockstep/core/standard_streams.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace lockstep::inline v0 {
namespace standard_streams_test {

bool is_null(int fd) {
  struct stat info{}, null{};
  return ::fstat(fd, &info) == 0 && ::stat("/dev/null", &null) == 0 && info.st_rdev == null.st_rdev;
}

// Runs in a child, which has its own descriptors: with each set of the three closed.
TEST(StandardStreams, WhatIsClosedIsOpenedOnDevNullAndTheRestStays) {
  for (int closed = 0; closed < 8; ++closed) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      struct stat before[3] = {};
      for (int fd = 0; fd < 3; ++fd) {
        ::fstat(fd, &before[fd]);
        if ((closed >> fd & 1) != 0) ::close(fd);
      }
      open_standard_streams();
      int wrong = 0;
      for (int fd = 0; fd < 3; ++fd) {
        struct stat now{};
        const bool good = (closed >> fd & 1) != 0
                              ? is_null(fd)
                              : ::fstat(fd, &now) == 0 && now.st_ino == before[fd].st_ino;
        if (!good) wrong |= 1 << fd;
      }
      ::_exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "closed: " << closed;
  }
}

}  // namespace standard_streams_test
}  // namespace lockstep::inline v0
