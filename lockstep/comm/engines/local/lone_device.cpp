#include "lockstep/comm/engines/local/lone_device.h"

#include <ATen/core/grad_mode.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/comm/backend/device_engine.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/event.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0 {
namespace {

constexpr auto kLook = std::chrono::microseconds(50);

Capabilities capabilities_on(c10::Device device) {
  Capabilities c = make_local_backends(1).front()->capabilities();
  c.device = device;
  c.stream_ordered = true;
  c.tags = c.probe = c.shared_memory = false;
  for (const Op message : {Op::kSend, Op::kRecv})
    c.ops[static_cast<size_t>(message)] = c.v_ops[static_cast<size_t>(message)] = false;
  return c;
}

class LoneRequest final : public Request {
 public:
  LoneRequest(c10::Device device, std::shared_ptr<const SetOnce<Breakage>> interruption)
      : device_(device),
        interruption_(std::move(interruption)),
        capture_(id_of(device::capture_of(device::current_stream(device)))),
        event_(std::make_shared<device::Event>(device)) {
    event_->record();
  }
  bool poll() override { return capture_ != 0 || (!device::captures_here() && event_->reached()); }
  void wait(Deadline deadline) override {
    while (!poll()) {
      if (deadline.expired())
        throw Timeout(device_.str() + " has not come by after " +
                      std::to_string(deadline.timeout_seconds()) + " s");
      if (const Breakage* why = interruption_->get())
        throw PeerLost("this rank gave up: " + why->text, -1);
      std::this_thread::sleep_for(kLook);
    }
  }
  std::shared_ptr<Tail> order(Deadline) override {
    // No wait exists for an operation of an abandoned capture.
    if (capture_ != 0 && !device::is_under_way(capture_)) return nullptr;
    event_->block(device::current_stream(device_));
    if (capture_ != 0) return nullptr;
    return std::make_shared<EventTail>(event_);
  }

 private:
  static uint64_t id_of(const device::Capture* capture) {
    return capture == nullptr ? 0 : capture->id();
  }

  c10::Device device_;
  std::shared_ptr<const SetOnce<Breakage>> interruption_;
  uint64_t capture_;  // the capture that it is part of; 0: none
  std::shared_ptr<device::Event> event_;
};

class LoneDeviceBackend final : public Backend, public DeviceOrder {
 public:
  explicit LoneDeviceBackend(c10::Device device)
      : device_(device), capabilities_(capabilities_on(device)) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  // It runs on the caller's stream, after that stream's operations.
  std::unique_ptr<Request> start(const Call& call) override {
    if (call.input != nullptr && call.output != nullptr && call.input != call.output) {
      const int64_t count = std::accumulate(call.counts.begin(), call.counts.end(), call.count);
      const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(call.dtype));
      const at::NoGradGuard no_grad;
      if (bytes > 0)
        bytes_at(call.output, bytes, device_)
            .copy_(bytes_at(const_cast<std::byte*>(call.input), bytes, device_),
                   /*non_blocking=*/true);
    }
    return std::make_unique<LoneRequest>(device_, interruption_);
  }

  DeviceOrder* device_order() override { return this; }
  std::shared_ptr<void> mark() override { return nullptr; }
  bool captures() const override { return true; }

  void progress() override {}
  void abort(const Breakage&) noexcept override {}  // there are no peers to tell
  void interrupt(const Breakage& why) noexcept override { interruption_->set(why); }

 private:
  c10::Device device_;
  Capabilities capabilities_;
  std::shared_ptr<SetOnce<Breakage>> interruption_ = std::make_shared<SetOnce<Breakage>>();
};

}  // namespace

std::unique_ptr<Backend> make_lone_device_backend(c10::Device device) {
  return std::make_unique<LoneDeviceBackend>(device);
}

}  // namespace lockstep::inline v0
