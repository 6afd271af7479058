// Another process's memory, where the system allows it (process_vm_readv(2), "cross-memory
// attach").
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0 {

// A word at an address of a process, which proves to a reader that it reads that process's memory
// and not that of one with the same number: in another PID namespace, or after it died.
struct MemoryProof {
  uint64_t address = 0;
  uint64_t value = 0;
};

// Copies `bytes` bytes at `address` of the process to `to`, and checks the proof with each of the
// system's copies. Returns false if the memory cannot be read (errno says why; ESRCH: the process
// is gone) or belongs to another process (errno 0); then `to` has undefined contents.
// Thread-safety: any thread.
bool read_memory(int64_t pid, MemoryProof proof, uint64_t address, void* to, size_t bytes);

// Without a proof, for callers that know by other means that the process lives. Returns false with
// errno set.
bool read_memory(int64_t pid, uint64_t address, void* to, size_t bytes);
bool write_memory(int64_t pid, uint64_t address, const void* from, size_t bytes);

}  // namespace lockstep::inline v0
