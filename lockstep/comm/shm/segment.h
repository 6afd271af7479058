// Segment: the memory and the life lines of a shm group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/store/store.h"

namespace lockstep::shm {

// A mapped segment and what tells who is alive. Unmaps and hangs up when destroyed.
class Segment {
 public:
  // Collective: rank 0 makes a segment of `bytes` zeroed bytes and an arena, the others get them
  // from rank 0. `initialise` runs on rank 0 before anybody else sees the memory. Throws Timeout,
  // StoreError, SystemError.
  Segment(Store& store, int rank, int size, size_t bytes, void (*initialise)(std::byte*, void*),
          void* argument, Deadline deadline);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* memory() const { return memory_; }
  // The group's arena (arena.h); empty where the system gives none. Once.
  UniqueFd take_arena() { return std::move(arena_); }
  // The ranks' processes, by the kernel's word when they connected to rank 0, and not by their own: whose memory is copied.
  // 0: one that cannot be seen from here.
  const std::vector<int32_t>& pids() const { return pids_; }
  // True once the rank's process is gone, or destroyed its segment.
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

}  // namespace lockstep::shm
