#include "lockstep/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

UniqueFd make_shared_memory(const char* name, size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw system_error("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw system_error("ftruncate of shared memory to " + std::to_string(bytes) + " bytes", errno);
  // Without seals a peer could shrink the mapped memory, which would raise SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw system_error("F_ADD_SEALS", errno);
  return fd;
}

bool has_sealed_size(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

SharedMapping::SharedMapping(int fd, size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    throw system_error("mmap of " + std::to_string(bytes) + " bytes of shared memory", errno);
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

bool SharedMapping::populate() const noexcept {
#ifdef MADV_POPULATE_WRITE
  return ::madvise(data_, bytes_, MADV_POPULATE_WRITE) == 0;
#else
  return ::madvise(data_, bytes_, 23) == 0;  // Linux 5.14, before the C library named it
#endif
}

}  // namespace lockstep::inline v0
