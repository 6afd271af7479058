// Message: what goes over a connection of the rpc. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string_view>

namespace lockstep::rpc::internal {

// A link passes kinds on without knowing what they mean, but kTaken.
enum class MessageKind : uint8_t {
  kRequest = 1,
  kResponse,  // of a call that returned
  kError,     // of a call that threw; body: an encoded error
  kCancel,    // the caller waits no longer
  kTaken,  // link to link: the bytes of a message's large tensors have been read from their owner's memory
  kNotice,  // one way, no call: leases, reference counts
};

using Tensors = c10::SmallVector<at::Tensor, 2>;
// To which device each of a message's tensors goes where it arrives; empty: none to another than the CPU.
using Devices = c10::SmallVector<c10::Device, 2>;

// At most kMostBody bytes of body and kMostTensors tensors. Tensors are dense, on the CPU; they arrive contiguous, without
// gradients.
struct MessageHead {
  MessageKind kind = MessageKind::kRequest;
  uint64_t call = 0;  // number of the call, given by the caller, never 0 but for notices
  const Devices* devices = nullptr;  // to send: of its tensors; null as if empty
};
inline constexpr size_t kMostBody = size_t{64} << 20;
inline constexpr size_t kMostTensors = 65536;

// As it arrives. `body` is valid during the callback only; tensors are the callback's to keep. Tensors that lie in the
// sender's memory are there already read, or, `pending`, are fetched by Link::fetch().
struct Incoming {
  MessageHead head;
  std::string_view body;
  Tensors tensors;
  Devices devices = {};  // what the sender wants; nobody has looked whether there are such devices
  uint64_t pending = 0;  // what Link::fetch() needs; 0: all tensors have their bytes
};

}  // namespace lockstep::rpc::internal
