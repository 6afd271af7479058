// DeviceWatch: operations that the host no longer waits for while a device still runs them. It
// keeps their memory until they are complete, and enforces their deadlines. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0 {

// It starts a thread of its own with the first operation. The watch may be destroyed on that
// thread: memory that it frees may be the last owner of a communicator.
// Thread-safety: one thread at a time, besides its own thread.
class DeviceWatch {
 public:
  struct Operation {
    std::vector<at::Tensor> keep;  // outlives the two members below
    std::shared_ptr<Tail> tail;
    std::unique_ptr<Request> request;
    uint64_t call = 0;  // its number on the call board
    Deadline deadline;
    // If not zero, the deadline is this long after the operations before it have completed: the
    // host may be many operations ahead.
    std::chrono::nanoseconds first_for{};
  };
  // Called on the watch's thread, and not after stop(): whether the operation is complete. Throws
  // the error with which it failed, or Timeout beyond its deadline, and is not called again then.
  // It also returns false where this is not the time to check.
  using Look = std::function<bool(Operation& operation)>;

  explicit DeviceWatch(Look look);
  // Calls stop(). Memory that the device still uses even then is kept until another watch ends, or
  // for good.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Operations are checked in the order in which they are added.
  void add(Operation operation);
  // Waits until all operations are complete or one has failed, at most until their deadlines.
  void drain();
  // Calls `found` with the number of each operation that is not complete.
  void each_call(const std::function<void(uint64_t call)>& found) const;
  // Releases the requests, so that their engine may end before the watch; no operation is checked
  // any more.
  void stop() noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0
