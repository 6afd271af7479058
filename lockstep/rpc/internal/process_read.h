// Reading another process's memory, where the system allows it (process_vm_readv(2), "cross-memory attach"). Not a public
// header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/rpc/internal/reactor.h"

namespace lockstep::rpc::internal {

// A word at an address of a process, by which another one knows that it reads that process's memory and not that of one
// that has the same number: in another PID namespace, or after it died.
struct Proof {
  uint64_t address = 0;
  uint64_t value = 0;
};

// The word lives as long as the object, at one place. Random.
class ProofWord {
 public:
  ProofWord();
  Proof proof() const { return {reinterpret_cast<uint64_t>(&word_), word_}; }

 private:
  uint64_t word_;
};

// Copies `bytes` bytes at `address` of the process to `to`, and proves meanwhile that it is the one. False: it cannot be
// read (errno says why; ESRCH: it is gone), or is another one (errno 0).
bool read_process(int64_t pid, Proof proof, uint64_t address, void* to, size_t bytes);
// The same by this thread and, of much, by workers of the reactor that have nothing else to do: one core copies slower than
// memory is. `bytes` are read when it returns.
bool read_process_by_many(Reactor& reactor, int64_t pid, Proof proof, uint64_t address, void* to,
                          size_t bytes);
bool can_read_process(int64_t pid, Proof proof);

// Whether the process is dead or dying. False also where /proc does not tell.
bool process_is_gone(int64_t pid);

}  // namespace lockstep::rpc::internal
