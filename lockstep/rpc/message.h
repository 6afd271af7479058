// Message: the unit of traffic over an rpc connection. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc::internal {

// A link passes kinds on without interpreting them, except kTaken.
enum class MessageKind : uint8_t {
  kRequest = 1,
  kResponse,  // of a call that returned
  kError,     // of a call that threw; body: an encoded error
  kCancel,    // the caller has stopped waiting
  // Link to link: the bytes of a message's large tensors have been read from their owner's memory.
  kTaken,
  kNotice,  // one way, no call: leases, reference counts
};

using Tensors = c10::SmallVector<at::Tensor, 2>;
// The device on which each of a message's tensors arrives; empty: all on the CPU.
using Devices = c10::SmallVector<c10::Device, 2>;

// At most kMostBody bytes of body and kMostTensors tensors. Tensors are dense and on the CPU; they
// arrive contiguous, without gradients.
struct MessageHead {
  MessageKind kind = MessageKind::kRequest;
  uint64_t call = 0;  // the caller's number of the call; 0 for notices only
  // Destinations of the tensors to send; null: like an empty list.
  const Devices* devices = nullptr;
  bool references = false;  // it has references: the receiver acknowledges it
};
inline constexpr size_t kMostBody = size_t{64} << 20;
inline constexpr size_t kMostTensors = 65536;

// A received message. `body` is valid during the callback only; the callback may keep the tensors.
// Tensors in the sender's memory have been read already or, with `pending`, are read by
// Link::fetch().
struct LOCKSTEP_API Incoming {
  MessageHead head;
  std::string_view body;
  Tensors tensors;
  Devices devices = {};  // requested by the sender; not checked for existence
  uint64_t pending = 0;  // the argument of Link::fetch(); 0: all tensors have their bytes
};

}  // namespace lockstep::inline v0::rpc::internal
