// DeviceFeed: copies a loader's batches to a device ahead of the loop. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <typeinfo>

#include "lockstep/core/export.h"
#include "lockstep/device/event.h"
#include "lockstep/flat/nested.h"

namespace lockstep::inline v0::data {

// Throws InvalidArgument: batches of that type have no tensors.
[[noreturn]] LOCKSTEP_API void refuse_batch(const std::type_info& batch, c10::Device device);

// Tensors go through pinned host memory and a stream beside the loop's, so that neither the loop
// nor the device's computation waits for a copy.
// Thread-safety: several threads may call send() at once.
class LOCKSTEP_API DeviceFeed {
 public:
  // Throws InvalidArgument for a device that does not exist.
  explicit DeviceFeed(c10::Device device);

  // Starts to copy the batch's CPU tensors, which are replaced by those on the device; tensors on
  // other devices stay. The result is an event that is reached when they have arrived.
  template <typename Batch>
  device::Event send(Batch& batch) const {
    int64_t found = 0;
    flat::for_each_tensor(batch, [&](at::Tensor& tensor) {
      ++found;
      send_one(tensor);
    });
    if (found == 0) refuse_batch(typeid(Batch), device_);
    return sent();
  }

  // Orders later work of this thread's current stream after the copies, so that it may use the
  // batch, whose memory is freed only after that work. The host does not wait.
  template <typename Batch>
  void arrive(Batch& batch, const device::Event& event) const {
    const c10::Stream stream = expect(event);
    flat::for_each_tensor(batch, [&](at::Tensor& tensor) { use_on(tensor, stream); });
  }

 private:
  void send_one(at::Tensor& tensor) const;
  device::Event sent() const;
  c10::Stream expect(const device::Event& event) const;
  void use_on(const at::Tensor& tensor, const c10::Stream& stream) const;

  c10::Device device_;
  c10::Stream stream_;
};

}  // namespace lockstep::inline v0::data
