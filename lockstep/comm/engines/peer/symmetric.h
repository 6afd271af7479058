// Symmetric: device memory of the callers that all ranks of a host can reach. Not a public header.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/peer/cuda_ipc.h"
#include "lockstep/comm/engines/peer/seat.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::peer {

// A place in such memory, as ranks tell it to each other.
struct Place {
  int64_t id = -1;  // the number of the allocation; -1: not in such memory
  int64_t offset = 0;
};

// The memory may outlive its owner.
// Thread-safety: any thread.
class Symmetric : public std::enable_shared_from_this<Symmetric> {
 public:
  // Requires ranks that have met and reach each other's devices.
  Symmetric(const CudaIpc& cuda, c10::Device device, int rank, Seats seats);

  SymmetricMemory allocate(int64_t bytes);  // Backend::allocate_symmetric()
  // Whether any memory was allocated: equal on all ranks between two calls.
  bool any() const;
  Place find(const std::byte* memory, int64_t bytes) const;  // in this rank's memory
  std::byte* at(int rank, Place place) const;

 private:
  struct Memory {
    int64_t bytes = 0;
    std::vector<std::byte*> bases;  // on all ranks
  };

  void open(int id);
  void release(int id) noexcept;
  void shut(int id);
  bool all(std::atomic<uint32_t> (Seat::*flags)[Seat::kMostSymmetric], int id) const;
  bool is_other_process(int rank) const { return seats_.of(rank).process != own_process(); }

  const CudaIpc cuda_;
  const c10::Device device_;
  const int rank_;
  const Seats seats_;
  mutable Mutex mutex_;
  int next_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<int, Memory> live_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::peer
