#include "lockstep/data/device_feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Type.h>

#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::data {

void refuse_batch(const std::type_info& batch, c10::Device device) {
  throw InvalidArgument("Loader: batches of type " + c10::demangle(batch.name()) +
                        " cannot be brought to " + device.str() +
                        ", since no tensors are found in them; give the type a member "
                        "auto tensors() { return std::tie(...); } (lockstep/flat/nested.h)");
}

DeviceFeed::DeviceFeed(c10::Device device)
    : device_(device), stream_(device::copy_stream(device)) {}

void DeviceFeed::send_one(at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_cpu()) return;
  const c10::StreamGuard on_stream(stream_);
  tensor = device::copy_to(tensor, device_);
}

device::Event DeviceFeed::sent() const {
  device::Event event(device_);
  event.record(stream_);
  return event;
}

c10::Stream DeviceFeed::expect(const device::Event& event) const {
  const c10::Stream stream = device::current_stream(device_);
  event.block(stream);
  return stream;
}

void DeviceFeed::use_on(const at::Tensor& tensor, const c10::Stream& stream) const {
  if (tensor.defined() && tensor.device() == stream.device()) tensor.record_stream(stream);
}

}  // namespace lockstep::inline v0::data
