// Segment: the memory of a shm group and the pipes that show which ranks are alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::shm {

// A mapped segment and its pipes. The destructor unmaps it and closes the pipes.
class Segment {
 public:
  // Rank 0 makes a segment of `bytes` zeroed bytes and an arena, and the others get them from rank
  // 0. `initialise` runs on rank 0 before any other rank sees the memory.
  // Collective: all ranks.
  // Throws: Timeout, StoreError, SystemError.
  Segment(Store& store, int rank, int size, size_t bytes, void (*initialise)(std::byte*, void*),
          void* argument, Deadline deadline);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* memory() const { return memory_; }
  // The group's arena (arena.h); empty where the system provides none. Call it once.
  UniqueFd take_arena() { return std::move(arena_); }
  // The ranks' processes, by the kernel's word when they connected to rank 0 rather than by their
  // own, since their memory is copied. 0: not visible from here.
  const std::vector<int32_t>& pids() const { return pids_; }
  // True once the rank's process is gone or has destroyed its segment.
  bool hung_up(int rank) const;

 private:
  void serve(Store& store, int size, UniqueFd own_reader, Deadline deadline);
  void fetch(Store& store, int rank, int size, UniqueFd own_reader, Deadline deadline);
  void map(size_t bytes);

  UniqueFd memfd_;
  UniqueFd arena_;
  UniqueFd life_;                 // the write end of this rank's pipe, never written
  std::vector<UniqueFd> others_;  // the read ends of all ranks' pipes, by rank; own: empty
  std::vector<int32_t> pids_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lockstep::inline v0::shm
