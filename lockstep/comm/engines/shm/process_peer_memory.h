// ProcessPeerMemory: access of one host's processes to each other's memory: mapped (the arena), or
// by process_vm_readv(2) and process_vm_writev(2) where the system permits them ("cross-memory
// attach").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/engines/rounds/peer_memory.h"
#include "lockstep/comm/engines/rounds/region.h"
#include "lockstep/comm/engines/shm/arena.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::shm {

class ProcessPeerMemory final : public rounds::PeerMemory {
 public:
  // Every rank tries to read a word of every other; copies() is true if all succeeded. The arena
  // may be null. `pids`: Segment's, by rank. `hung_up` tells whether a rank's process is gone.
  // Collective: all ranks.
  // Throws: Timeout, PeerLost.
  ProcessPeerMemory(rounds::Region region, int rank, std::shared_ptr<Arena> arena,
                    std::vector<int32_t> pids, std::function<bool(int rank)> hung_up,
                    Deadline deadline);

  std::optional<rounds::Window> find(const std::byte* memory, int64_t bytes) const override;
  std::byte* peer(int rank, rounds::Window window) const override;
  SymmetricMemory allocate(int64_t bytes) override;
  SymmetricMemory allocate_shared(int64_t bytes) override;
  bool copies() const override { return copies_; }
  void read(int rank, uint64_t address, std::byte* to, int64_t bytes) const override;
  void write(int rank, uint64_t address, const std::byte* from, int64_t bytes) const override;

 private:
  SymmetricMemory owned(std::byte* data) const;
  void await_step(rounds::Region region, uint32_t step, Deadline deadline) const;
  bool probe(rounds::Region region) const;
  void check_alive(int rank, int error = 0) const;
  void check_alive_soon(int rank) const;

  int rank_;
  std::shared_ptr<Arena> arena_;
  std::function<bool(int)> hung_up_;
  const std::vector<int32_t> pids_;
  mutable std::vector<uint64_t> seen_alive_;  // ticks()
  bool copies_ = false;
};

}  // namespace lockstep::inline v0::shm
