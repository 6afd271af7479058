// Another process's memory, where the system allows it (process_vm_readv(2), "cross-memory attach").
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// A word at an address of a process, by which another one knows that it reads that process's memory
// and not that of one that has the same number: in another PID namespace, or after it died.
struct MemoryProof {
  uint64_t address = 0;
  uint64_t value = 0;
};

// Copies `bytes` bytes at `address` of the process to `to`, and proves with each of the system's
// copies that it is the one. False: it cannot be read (errno says why; ESRCH: it is gone), or is
// another one (errno 0); then `to` has part of it, or rubbish. Any thread.
bool read_memory(int64_t pid, MemoryProof proof, uint64_t address, void* to, size_t bytes);

// Without a proof: for who knows by other means that the process lives. False: errno says why.
bool read_memory(int64_t pid, uint64_t address, void* to, size_t bytes);
bool write_memory(int64_t pid, uint64_t address, const void* from, size_t bytes);

}  // namespace lockstep
