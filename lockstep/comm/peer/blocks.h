// Blocks: memory of every rank's device that all ranks of a host can reach, and events by which
// their streams follow each other. Not a public header.
//
// Ranks that are processes open each other's memory and events by CUDA's IPC; ranks that are
// threads of one process use them as they are. Memory that others may have open is not freed before
// they have closed it, whoever goes first.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/peer/cuda_ipc.h"
#include "lockstep/comm/peer/seat.h"
#include "lockstep/comm/peer/symmetric.h"
#include "lockstep/core/deadline.h"

namespace lockstep::peer {

class Blocks {
 public:
  // Collective over the ranks of `host`, whose ranks share memory; meets over it. Throws
  // LaunchError of one line on all ranks where one cannot, and what waits in `host` end with.
  static std::unique_ptr<Blocks> meet(Backend& host, c10::Device device, int rank, int size,
                                      int64_t slot_bytes, Deadline deadline);
  // After leave(), or where the device was given nothing.
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  std::byte* slot(int rank, int64_t window) const {
    return ranks_[static_cast<size_t>(rank)].data + window % kSlots * slot_bytes_;
  }
  int64_t slot_bytes() const { return slot_bytes_; }
  Symmetric& symmetric() const { return *symmetric_; }

  // Of this rank, behind what `stream` was given. With the device as the current one, as the next.
  void record(Mark mark, int64_t window, const c10::Stream& stream);
  // What `stream` is given from now on comes after that mark of all ranks, which they have
  // recorded.
  void wait_for_all(Mark mark, int64_t window, const c10::Stream& stream);

  // record() of kTaken, in the order of windows, which others can count.
  void record_taken(int64_t window, const c10::Stream& stream);
  // Whether the devices of all ranks that `host` has not lost have taken so many windows.
  bool others_have_taken(const Backend& host, int64_t windows);

  // This rank's device is through with all that it was given.
  void leave() noexcept;
  // A rank that `host` has lost before that.
  std::optional<int> lost_rank(const Backend& host) const;

 private:
  struct Rank {
    std::byte* data = nullptr;
    CudaEvent events[kMarks][kSlots] = {};
    bool opened = false;  // of another process
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

}  // namespace lockstep::peer
