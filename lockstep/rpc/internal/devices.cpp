#include "lockstep/rpc/internal/devices.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/current.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, device);
}

// A guard restores streams in order: a stream that occurs twice would stay.
void add_once(std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && can_be_named(tensor.device().type());
}

// Tells the allocator that the stream uses the tensor's memory.
void used_by(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.is_sparse()) return tensor.record_stream(stream);
  tensor._indices().record_stream(stream);
  tensor._values().record_stream(stream);
}

// Orders another stream's use of the tensor after `from`, and tells the allocator about it.
void hand_over(const at::Tensor& tensor, const c10::Stream& from, const c10::Stream& to) {
  if (from == to) return;
  device::order(from, to);
  used_by(tensor, to);
}

void check_is_there(c10::Device device) {
  const int count = visible(device.type());
  if (device.has_index() && device.index() >= 0 && device.index() < count) return;
  throw InvalidArgument("a tensor is sent to " + device.str() + ", but this process sees " +
                        std::to_string(count) +
                        " devices of that kind; change the sender's device map");
}

class Arrived final : public Arriving {
 public:
  // The tensors that lie on devices; uses this thread's current streams there, and on `devices`.
  explicit Arrived(std::vector<at::Tensor> tensors, const std::vector<c10::Device>& devices = {})
      : tensors_(std::move(tensors)) {
    std::erase_if(tensors_, [](const at::Tensor& tensor) { return !on_device(tensor); });
    for (const c10::Device device : devices) record(device);
    for (const at::Tensor& tensor : tensors_) record(tensor.device());
  }
  // For streams that only read.
  explicit Arrived(std::vector<device::Event> events) : events_(std::move(events)) {}

  void come_here() const override {
    const MutexLock lock(mutex_);  // an event belongs to one thread at a time
    for (const device::Event& event : events_) event.block(device::current_stream(event.device()));
    for (const at::Tensor& tensor : tensors_)
      used_by(tensor, device::current_stream(tensor.device()));
  }

  void add_devices(std::vector<c10::Device>& devices) const override {
    for (const device::Event& event : events_)
      if (std::find(devices.begin(), devices.end(), event.device()) == devices.end())
        devices.push_back(event.device());
  }
  bool of_nothing() const { return events_.empty(); }

 private:
  void record(c10::Device device) {
    if (std::none_of(events_.begin(), events_.end(),
                     [&](const auto& event) { return event.device() == device; }))
      events_.emplace_back(device).record();
  }

  std::vector<at::Tensor> tensors_;
  mutable Mutex mutex_;
  std::vector<device::Event> events_;
};

}  // namespace

std::optional<c10::Device> DeviceWay::there(c10::Device here) const {
  if (same) return here;
  for (const auto& [from, to] : map)
    if (from == here) return to;
  return std::nullopt;
}

std::optional<c10::Device> DeviceWay::back(c10::Device there) const {
  if (same) return there;
  for (const auto& [from, to] : map)
    if (to == there) return from;
  return std::nullopt;
}

DeviceWay DeviceWay::reversed() const {
  DeviceWay other{.same = same, .map = {}};
  for (const auto& [from, to] : map) other.map.emplace_back(to, from);
  return other;
}

bool can_be_named(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA || type == c10::DeviceType::XPU ||
         type == c10::DeviceType::PrivateUse1;
}

int visible(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::VirtualGuardImpl(type).deviceCount() : 0;
}

int visible_devices() {
  const auto type = at::getAccelerator();
  return type ? visible(*type) : 0;
}

std::function<void()> as_on_this_thread() {
  if (visible_devices() == 0) return nullptr;
  return [device = device::current(*at::getAccelerator())] { device::set_current(device); };
}

void check_map(const std::string& peer, const DeviceMap& map) {
  const auto refuse = [&](c10::Device device, const char* why) {
    throw InvalidArgument("the device map for '" + peer + "' has " + device.str() + ", " + why);
  };
  std::vector<c10::Device> here, there;
  for (const auto& [from, to] : map) {
    for (const c10::Device one : {from, to})
      if (!can_be_named(one.type()) || one.index() < 0)
        refuse(one, "which is no device with a number; tensors on the CPU need no map");
    if (std::find(here.begin(), here.end(), from) != here.end())
      refuse(from, "twice; one device stands for one");
    if (std::find(there.begin(), there.end(), to) != there.end())
      refuse(to, "twice; one device stands for one");
    here.push_back(from);
    there.push_back(to);
  }
}

void check_own_devices(const std::string& peer, const DeviceMap& map) {
  for (const auto& [from, to] : map)
    if (from.index() >= visible(from.type()))
      throw InvalidArgument("the device map for '" + peer + "' sends from " + from.str() +
                            ", but this process sees " + std::to_string(visible(from.type())) +
                            " devices of that kind");
}

Devices devices_for(const Tensors& tensors, const DeviceWay& way, const Complain& complain) {
  Devices devices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const c10::Device from = tensors[i].device();
    if (from.is_cpu()) continue;
    const auto to = way.there(from);
    if (!to) throw InvalidArgument(complain(from));
    if (devices.empty()) devices.assign(tensors.size(), c10::Device(c10::kCPU));
    devices[i] = *to;
  }
  return devices;
}

std::shared_ptr<const Arriving> point_of(std::vector<at::Tensor> tensors) {
  return std::make_shared<Arrived>(std::move(tensors));
}

std::shared_ptr<const Arriving> point_of(std::vector<device::Event> events) {
  return std::make_shared<Arrived>(std::move(events));
}

std::shared_ptr<const Arriving> computed(std::vector<c10::Device> devices,
                                         std::vector<at::Tensor> tensors) {
  auto point = std::make_shared<Arrived>(std::move(tensors), devices);
  return point->of_nothing() ? nullptr : std::move(point);
}

std::shared_ptr<const Arriving> arrive(Tensors& tensors, const Devices& devices) {
  const at::NoGradGuard no_grad;
  for (const c10::Device device : devices)
    if (!device.is_cpu()) check_is_there(device);
  std::vector<c10::Stream> streams;
  for (const c10::Device device : devices)
    if (!device.is_cpu()) add_once(streams, device::copy_stream(device));
  const c10::MultiStreamGuard guard(streams);
  std::vector<at::Tensor> moved;
  for (size_t i = 0; i < devices.size(); ++i)
    if (!devices[i].is_cpu()) moved.push_back(tensors[i] = device::copy_to(tensors[i], devices[i]));
  return point_of(std::move(moved));
}

OnDefaultStreams::OnDefaultStreams(const Devices& devices, const DeviceWay& way, bool all) {
  std::vector<c10::Stream> streams;
  const auto add = [&](c10::Device device) {
    if (!device.is_cpu() && device.index() < visible(device.type()))
      add_once(streams, default_stream(device));
  };
  for (const c10::Device device : devices) add(device);
  for (const auto& [caller, own] : way.map) add(own);
  if (all || way.same)
    for (int i = 0; i < visible_devices(); ++i)
      add({*at::getAccelerator(), static_cast<c10::DeviceIndex>(i)});
  if (!streams.empty()) guard_.emplace(streams);
}

void hand_to_default(const at::Tensor& tensor) {
  if (!on_device(tensor)) return;
  const c10::Device device = tensor.device();
  hand_over(tensor, device::current_stream(device), default_stream(device));
}

void take_from_default(const at::Tensor& tensor) {
  if (!on_device(tensor)) return;
  const c10::Device device = tensor.device();
  hand_over(tensor, default_stream(device), device::current_stream(device));
}

}  // namespace lockstep::inline v0::rpc::internal
