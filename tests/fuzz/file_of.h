// A fuzzer's input as a file.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// In memory alone; gone with its owner.
class FileOf {
 public:
  FileOf(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_ || ::write(fd_.get(), data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  UniqueFd fd_;
};

}  // namespace lockstep::inline v0
