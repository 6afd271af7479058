// Reading another process's memory, where the system allows it (process_vm_readv(2), "cross-memory attach"). Not a public
// header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/process_memory.h"
#include "lockstep/rpc/internal/reactor.h"

namespace lockstep::rpc::internal {

using Proof = MemoryProof;

// The word lives as long as the object, at one place. Random.
class ProofWord {
 public:
  ProofWord();
  Proof proof() const { return {reinterpret_cast<uint64_t>(&word_), word_}; }

 private:
  uint64_t word_;
};

// read_memory() of core/process_memory.h by this thread and, of much, by workers of the reactor that have nothing else to do:
// one core copies slower than memory is. `bytes` are read when it returns.
bool read_process_by_many(Reactor& reactor, int64_t pid, Proof proof, uint64_t address, void* to,
                          size_t bytes);
bool can_read_process(int64_t pid, Proof proof);

// Whether the process is dead or dying. False also where /proc does not tell.
bool process_is_gone(int64_t pid);

}  // namespace lockstep::rpc::internal
