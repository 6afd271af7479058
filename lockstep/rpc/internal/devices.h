// Tensors of devices in messages: their destinations by a device map, their copies in host memory,
// and their arrival. Not a public header.
//
// They go through pinned memory, on side streams, ordered after the work of the caller's current
// streams. A thread of the agent checks, with naps in between, whether the copies are complete, and
// then sends the message (DeferredSender). At the other end they are copied to their devices on the
// copy stream, and the current streams of their receiver wait for that (Arriving). The host waits
// for no device once libtorch has allocated its memory.
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

namespace lockstep::inline v0::rpc::internal {

// The destinations of a call's tensors and of those of its answer; a request tells them to the
// other end.
struct DeviceWay {
  bool same = false;  // a call to itself: every device maps to itself
  DeviceMap map;      // from the caller's devices to the callee's

  std::optional<c10::Device> there(c10::Device here) const;
  std::optional<c10::Device> back(c10::Device there) const;
  // From the callee to the caller.
  DeviceWay reversed() const;
};

// Whether a message may name devices of this type, that is, whether they can compute. A device of
// that number need not exist.
bool can_be_named(c10::DeviceType type);
// The number of devices of this type that this process sees; 0 where its libtorch has none.
int visible(c10::DeviceType type);
// The devices of the kind that this libtorch computes on.
int visible_devices();
// A function that sets its thread's current device to this thread's, as it is now; null where there
// are no devices.
std::function<void()> as_on_this_thread();
// Checks the map for `peer` given as an option. Throws InvalidArgument for the CPU, a device
// without a number, or one that is mapped twice.
void check_map(const std::string& peer, const DeviceMap& map);
// Throws InvalidArgument where this process lacks one of the map's own devices.
void check_own_devices(const std::string& peer, const DeviceMap& map);

// The device on which each tensor arrives; empty where all are on the CPU. Throws InvalidArgument
// with the text of `complain` for a device that is not in the map.
using Complain = std::function<std::string(c10::Device device)>;
Devices devices_for(const Tensors& tensors, const DeviceWay& way, const Complain& complain);

// For tensors of devices: the point that this thread's current streams have reached when they are
// complete.
std::shared_ptr<const Arriving> point_of(std::vector<at::Tensor> tensors);
// For streams, without tensors. The events are used by this object alone.
std::shared_ptr<const Arriving> point_of(std::vector<device::Event> events);

// Copies the received tensors from host memory to the devices that the message names. Throws
// InvalidArgument where this process lacks one.
std::shared_ptr<const Arriving> arrive(Tensors& tensors, const Devices& devices);

// Makes the default streams of devices this thread's current ones for its lifetime. Functions run
// on them whichever thread serves them, so that the data that they keep between calls is ordered.
// `all`: of all devices, for a thread that may have chosen others.
class OnDefaultStreams {
 public:
  OnDefaultStreams(const Devices& devices, const DeviceWay& way, bool all = false);

 private:
  std::optional<c10::MultiStreamGuard> guard_;
};

// Gradients of several threads are added on the default streams: orders these after this thread's
// current streams, and the reverse.
void hand_to_default(const at::Tensor& tensor);
void take_from_default(const at::Tensor& tensor);

// Copies of the tensors that lie on devices, in pinned memory; other tensors unchanged.
struct Copies {
  Tensors tensors;
  std::vector<device::Event> events;
  size_t bytes = 0;
  std::shared_ptr<const Arriving> read;  // work after it may change the tensors

  bool there() const;
};

// Sends messages once their copies are complete. Its thread starts with the first message.
class DeferredSender {
 public:
  // `copies` are complete; null: they were not before the deadline, or never will be. `error` is
  // then the device's, or says that the sender was stopped. It must not throw.
  using Send = std::function<void(const Tensors* copies, const std::exception_ptr& error)>;
  // The messages of one link with the same order number are sent in the order of posting; those of
  // order 0 wait for no other.
  struct Line {
    const void* link = nullptr;
    uint64_t order = 0;
    auto operator<=>(const Line&) const = default;
  };

  DeferredSender();
  // Calls stop().
  ~DeferredSender();
  DeferredSender(const DeferredSender&) = delete;
  DeferredSender& operator=(const DeferredSender&) = delete;

  // Starts the copies, ordered after this thread's current streams. Never waits. Throws
  // InvalidArgument where that thread captures a graph: a message is sent once, and a replay would
  // copy without sending.
  // Thread-safety: any thread.
  Copies copy(const Tensors& tensors);
  // Returns false if it was stopped.
  bool post(Copies copies, Line line, Deadline deadline, Send send);
  // Whether a message of the line has been posted and not yet sent.
  bool has(Line line) const;
  // Waits until fewer bytes wait for their copies on the link. Returns false at the deadline.
  bool wait_for_room(const void* link, size_t bytes, Deadline deadline);
  // Drops waiting messages; waits for a message that is being sent, unless by the calling thread.
  void stop(Deadline deadline) noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0::rpc::internal
