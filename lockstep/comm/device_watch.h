// DeviceWatch: operations that the host was let go from while a device is still at them. It keeps
// their memory until they are over, and sees to it that they end. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

// Used by one thread at a time, apart from the thread of its own that it starts with the first
// operation. May be destroyed on that one too: memory that it gives back may be the last thing that
// holds a communicator.
class DeviceWatch {
 public:
  struct Operation {
    std::vector<at::Tensor> keep;  // outlives the two below
    std::shared_ptr<Tail> tail;
    std::unique_ptr<Request> request;
    uint64_t call = 0;  // on the board
    Deadline deadline;
    // Where it is not zero the deadline is so long after all before it are over: the host may be
    // many operations ahead.
    std::chrono::nanoseconds first_for{};
  };
  // Called on its thread, and not after stop(): whether the operation is over. Throws what it failed
  // with, Timeout beyond its deadline, and is not asked again. False also where now is not the time
  // to look.
  using Look = std::function<bool(Operation& operation)>;

  explicit DeviceWatch(Look look);
  // stop(). What the device is not through with even now is kept until another watch ends, or for
  // good.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // They are looked at in the order in which they are added.
  void add(Operation operation);
  // Waits until all are over, or one has failed: their deadlines are its.
  void drain();
  // Lets the requests go, so that their engine may end before the watch; nothing is looked at any
  // more.
  void stop() noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
