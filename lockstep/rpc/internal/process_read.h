// Reads another process's memory where the system allows it (process_vm_readv(2), "cross-memory
// attach"). Not a public header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/process_memory.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/internal/reactor.h"

namespace lockstep::inline v0::rpc::internal {

using Proof = MemoryProof;

// The process at the other end of a connection, as the kernel knows it.
struct OtherProcess {
  int64_t pid = 0;  // 0: on another host, or not visible from here
  // Readable once it has ended (pidfd_open(2)); may be empty where the system has none (before
  // Linux 5.3).
  UniqueFd process;
};

// The peer of a connected Unix socket; of another socket, none.
OtherProcess other_process(int fd);
// Whether it is known to have ended: its number may then belong to another process.
bool has_ended(const OtherProcess& process);

// read_memory() of core/process_memory.h by this thread and, for large reads, by idle workers of
// the reactor, since one core copies more slowly than the memory allows. `bytes` are read when it
// returns.
bool read_process_by_many(Reactor& reactor, int64_t pid, Proof proof, uint64_t address, void* to,
                          size_t bytes);
bool can_read_process(int64_t pid, Proof proof);

// Whether the process is dead or dying. Also false where /proc does not tell.
bool process_is_gone(int64_t pid);

}  // namespace lockstep::inline v0::rpc::internal
