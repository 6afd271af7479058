#include "lockstep/core/process_memory.h"

#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::inline v0 {
namespace {

constexpr size_t kMost = size_t{1} << 30;  // the system transfers less than 2 GiB per call

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                             unsigned long);

iovec piece(uint64_t address, size_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};  // NOLINT: of another process
}

// Transfers everything, although the system may transfer less per call; makes at least one call if
// there is a proof.
bool transfer_all(Transfer transfer, int64_t pid, const MemoryProof* proof, uint64_t address,
                  char* own, size_t bytes) {
  const size_t words = proof ? 1 : 0;
  do {
    uint64_t word = 0;
    const size_t part = std::min(bytes, kMost);
    const iovec local[2] = {{&word, sizeof word}, {own, part}};
    const iovec remote[2] = {piece(proof ? proof->address : 0, sizeof word), piece(address, part)};
    const unsigned long pieces = words + (part > 0 ? 1 : 0);
    if (pieces == 0) return true;
    const size_t first = 1 - words;
    const ssize_t n =
        transfer(static_cast<pid_t>(pid), local + first, pieces, remote + first, pieces, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    const size_t before = words * sizeof word;
    if (static_cast<size_t>(n) < before || (proof && word != proof->value)) {
      errno = 0;
      return false;
    }
    const size_t got = static_cast<size_t>(n) - before;
    if (got == 0 && part > 0) {
      errno = EFAULT;
      return false;
    }
    own += got;
    address += got;
    bytes -= got;
  } while (bytes > 0);
  return true;
}

}  // namespace

bool read_memory(int64_t pid, MemoryProof proof, uint64_t address, void* to, size_t bytes) {
  return transfer_all(::process_vm_readv, pid, &proof, address, static_cast<char*>(to), bytes);
}

bool read_memory(int64_t pid, uint64_t address, void* to, size_t bytes) {
  return transfer_all(::process_vm_readv, pid, nullptr, address, static_cast<char*>(to), bytes);
}

bool write_memory(int64_t pid, uint64_t address, const void* from, size_t bytes) {
  return transfer_all(::process_vm_writev, pid, nullptr, address,
                      const_cast<char*>(static_cast<const char*>(from)), bytes);
}

}  // namespace lockstep::inline v0
