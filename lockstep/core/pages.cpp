#include "lockstep/core/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace lockstep {

void release_pages(void* begin, size_t bytes) noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const auto to = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (from >= to) return;
  const int saved = errno;
  auto* const memory = reinterpret_cast<void*>(from);  // NOLINT: arithmetic on addresses
  // A hole in what is shared, private pages dropped: each call refuses the other's kind of memory,
  // but for MADV_DONTNEED of shared pages, which would only unmap them here.
  if (::madvise(memory, to - from, MADV_REMOVE) != 0) ::madvise(memory, to - from, MADV_DONTNEED);
  errno = saved;
}

}  // namespace lockstep
