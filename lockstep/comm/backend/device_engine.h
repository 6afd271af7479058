// Shared by engines that carry a device's memory over libtorch's generic interfaces. Not a public
// header.
#pragma once

#include <ATen/ops/from_blob.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/device/event.h"
#include "lockstep/device/graph.h"

namespace lockstep::inline v0 {

// An event that the device reaches once the operation's result is complete.
class EventTail final : public Tail {
 public:
  explicit EventTail(std::shared_ptr<const device::Event> event) : event_(std::move(event)) {}
  bool over() noexcept override {
    try {
      return !device::captures_here() && event_->reached();
    } catch (const std::exception&) {  // the device is broken
      return false;
    }
  }

 private:
  std::shared_ptr<const device::Event> event_;
};

// A view, not an owner, of `count` elements of the device's memory, or of another device's memory
// that this one can reach.
inline at::Tensor elements_at(std::byte* data, int64_t count, at::ScalarType dtype,
                              c10::Device device) {
  return at::for_blob(data, {count})
      .target_device(device)
      .options(at::TensorOptions().dtype(dtype).device(device))
      .make_tensor();
}
inline at::Tensor bytes_at(std::byte* data, int64_t bytes, c10::Device device) {
  return elements_at(data, bytes, at::kByte, device);
}

}  // namespace lockstep::inline v0
