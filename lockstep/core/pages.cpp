#include "lockstep/core/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kLargePage = 2 << 20;

}  // namespace

void release_pages(void* begin, size_t bytes) noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const auto to = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (from >= to) return;
  const int saved = errno;
  auto* const memory = reinterpret_cast<void*>(from);  // NOLINT: arithmetic on addresses
  // A hole in shared memory, or dropped private pages: each call refuses the other's kind of
  // memory, except MADV_DONTNEED of shared pages, which would only unmap them here.
  if (::madvise(memory, to - from, MADV_REMOVE) != 0) ::madvise(memory, to - from, MADV_DONTNEED);
  errno = saved;
}

PageMemory::PageMemory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes < kLargePage ? bytes : bytes + kLargePage;
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED)
    throw system_error("no memory for " + std::to_string(bytes) + " bytes", errno);
  data_ = static_cast<std::byte*>(mapping_);
  if (bytes < kLargePage) return;
  data_ += (kLargePage - reinterpret_cast<uintptr_t>(data_) % kLargePage) % kLargePage;
  ::madvise(data_, bytes, MADV_HUGEPAGE);  // only a hint
}

PageMemory::~PageMemory() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

}  // namespace lockstep::inline v0
