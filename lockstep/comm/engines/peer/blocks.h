// Blocks: memory of every rank's device that all ranks of a host can reach, and events that order
// their streams. Not a public header.
//
// Ranks that are processes open each other's memory and events by CUDA's IPC; ranks that are
// threads of one process use them directly. Memory that other ranks may have open is freed only
// after they have closed it, in whichever order the ranks leave.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/peer/cuda_ipc.h"
#include "lockstep/comm/engines/peer/seat.h"
#include "lockstep/comm/engines/peer/symmetric.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::peer {

class Blocks {
 public:
  // Meets over `host`, whose ranks share memory.
  // Collective: all ranks of `host`.
  // Throws: a one-line LaunchError on all ranks where one cannot share its memory, and the errors
  // of waits in `host`.
  static std::unique_ptr<Blocks> meet(Backend& host, c10::Device device, int rank, int size,
                                      int64_t slot_bytes, Deadline deadline);
  // Called after leave(), or where the device was given nothing.
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  std::byte* slot(int rank, int64_t window) const {
    return ranks_[static_cast<size_t>(rank)].data + window % kSlots * slot_bytes_;
  }
  int64_t slot_bytes() const { return slot_bytes_; }
  Symmetric& symmetric() const { return *symmetric_; }

  // Records this rank's mark behind the work that `stream` was given. The device must be the
  // current one, here and in the next function.
  void record(Mark mark, int64_t window, const c10::Stream& stream);
  // Orders later work of `stream` after that mark on all ranks, which they have recorded.
  void wait_for_all(Mark mark, int64_t window, const c10::Stream& stream);

  // record() of kTaken, in the order of windows; other ranks can count these.
  void record_taken(int64_t window, const c10::Stream& stream);
  // Whether the devices of all ranks that `host` has not lost have taken that many windows.
  bool others_have_taken(const Backend& host, int64_t windows);

  // Says that this rank's device has finished all its work.
  void leave() noexcept;
  // A rank that `host` lost before it left.
  std::optional<int> lost_rank(const Backend& host) const;

 private:
  struct Rank {
    std::byte* data = nullptr;
    CudaEvent events[kMarks][kSlots] = {};
    bool opened = false;  // opened from another process
  };

  Blocks(c10::Device device, int rank, int size, int64_t slot_bytes);
  void agree(Backend& host, Deadline deadline, MeetingStep which,
             const std::function<void()>& step);
  void share(bool processes);
  void open();
  static void destroy_events(const CudaIpc& cuda, const Rank& rank);
  CudaEvent& event(int rank, Mark mark, int64_t window) {
    return ranks_[static_cast<size_t>(rank)].events[static_cast<int>(mark)][window % kSlots];
  }

  CudaIpc cuda_;
  c10::Device device_;
  int rank_;
  int64_t slot_bytes_;
  Seats seats_;
  std::vector<Rank> ranks_;
  std::shared_ptr<Symmetric> symmetric_;
};

}  // namespace lockstep::inline v0::peer
