// Tensors of devices in messages: where they go by a device map, their copies in host memory, and how they arrive. Not a public
// header.
//
// They go through pinned memory, on side streams, behind what the caller's current streams have been given. A thread of
// the agent's looks, with naps between, whether the copies are there, and sends the message then (Courier). At the other end
// they go to their devices on the copy stream, and whoever takes them has its current streams wait for that (Arriving). The
// host waits for no device, once libtorch has taken its memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/device/event.h"
#include "lockstep/rpc/arriving.h"
#include "lockstep/rpc/device_map.h"
#include "lockstep/rpc/message.h"

namespace lockstep::rpc::internal {

// Where the tensors of a call go, and where those of its answer come back to; a request says it to the other end.
struct DeviceWay {
  bool same = false;  // a call to oneself: every device to itself
  DeviceMap map;      // from the caller's devices to the callee's

  std::optional<c10::Device> there(c10::Device here) const;
  std::optional<c10::Device> back(c10::Device there) const;
  // From the callee to the caller.
  DeviceWay reversed() const;
};

// A device that a message may name: of a kind that computes. Whether there is one of its number is another question.
bool can_be_named(c10::DeviceType type);
// How many devices of the kind this process sees; none where its libtorch has none.
int visible(c10::DeviceType type);
// The devices of the kind that this libtorch computes on.
int visible_devices();
// Makes this thread's current device, as it is now, that of a thread that calls it; null where there are no devices.
std::function<void()> as_on_this_thread();
// The map `map` for `peer`, as an option says it. Throws InvalidArgument: a device that is no other than the CPU or has no number,
// one that is there twice.
void check_map(const std::string& peer, const DeviceMap& map);
// Throws InvalidArgument where this process lacks one of the map's own devices.
void check_own_devices(const std::string& peer, const DeviceMap& map);

// Where each of them arrives; empty where all are on the CPU. Throws InvalidArgument, `complain`'s words, for a device that
// the way does not lead from.
using Complain = std::function<std::string(c10::Device device)>;
Devices devices_for(const Tensors& tensors, const DeviceWay& way, const Complain& complain);

// Tensors of devices that are there once this thread's current streams, as they are now, have come so far.
std::shared_ptr<const Arriving> point_of(std::vector<at::Tensor> tensors);
// Points of streams, without tensors of them. Each event is this one's alone.
std::shared_ptr<const Arriving> point_of(std::vector<device::Event> events);

// Moves the tensors of host memory, just received, to the devices that the message names. Throws InvalidArgument where
// this process lacks one.
std::shared_ptr<const Arriving> arrive(Tensors& tensors, const Devices& devices);

// Makes the default streams of devices this thread's current ones, while it lives. Functions run on them whichever thread serves, so
// that what they keep between calls is in order. `all`: of all devices, on a thread that may have chosen others.
class OnDefaultStreams {
 public:
  OnDefaultStreams(const Devices& devices, const DeviceWay& way, bool all = false);

 private:
  std::optional<c10::MultiStreamGuard> guard_;
};

// Gradients of several threads meet on the default streams: behind what this thread's current streams were given; and the other way
// round.
void hand_to_default(const at::Tensor& tensor);
void take_from_default(const at::Tensor& tensor);

// Copies of tensors that lie on devices, in pinned memory, as they come; others as they are.
struct Copies {
  Tensors tensors;
  std::vector<device::Event> events;
  size_t bytes = 0;
  std::shared_ptr<const Arriving> read;  // what comes after it may change the tensors

  bool there() const;
};

// Sends messages once their copies are there. Its thread starts with the first.
class Courier {
 public:
  // `copies` are there; null: they were not by the deadline, or never will be: `error` says what the device said, or that the courier
  // was stopped. It must not throw.
  using Send = std::function<void(const Tensors* copies, const std::exception_ptr& error)>;
  // What goes over one link. Messages of one order go in that of posting; those of order 0 wait for no other.
  struct Line {
    const void* link = nullptr;
    uint64_t order = 0;
    auto operator<=>(const Line&) const = default;
  };

  Courier();
  // stop().
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Any thread; never waits. Begins to copy behind this thread's current streams. Throws InvalidArgument where that thread captures a
  // graph: a message goes once, and a replay would copy without one.
  Copies copy(const Tensors& tensors);
  // False: it was stopped.
  bool post(Copies copies, Line line, Deadline deadline, Send send);
  // Whether something of the line has been posted and not been sent.
  bool has(Line line) const;
  // Until fewer bytes wait for their copies to go over the link. False: not before the deadline.
  bool wait_for_room(const void* link, size_t bytes, Deadline deadline);
  // What waits is not sent any more; waits for a message that is being sent, unless by that thread.
  void stop(Deadline deadline) noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::rpc::internal
