// Memory without a name, which processes share by handing over its descriptor (a sealed memfd). It
// goes with the last descriptor or mapping, whatever kills the processes.
#pragma once

#include <cstddef>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// A memfd of `bytes` zeroed bytes, close-on-exec, whose size is sealed: a process that has it
// mapped cannot be killed by SIGBUS because another one shrinks it. `name` is for /proc.
// Throws: SystemError.
UniqueFd make_shared_memory(const char* name, size_t bytes);

// Whether the descriptor is a memfd whose size is sealed, and no other process can shrink it.
bool has_sealed_size(int fd);

// A mapping of a shared memory, to read and to write. The destructor unmaps it.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Maps the first `bytes` bytes (> 0) of the descriptor, which the caller keeps.
  // Throws: SystemError.
  SharedMapping(int fd, size_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives every page its memory now, so that no later write pays for it; false where the system
  // cannot (before Linux 5.14, or without enough memory), and then the first writes pay.
  bool populate() const noexcept;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lockstep::inline v0
