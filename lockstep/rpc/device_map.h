// DeviceMap: maps this process's devices to those of a peer.
#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace lockstep::inline v0::rpc {

// Pairs of a device of this process and one of the peer's: {{cuda:0, cuda:1}}. Tensors that a call
// sends from the first arrive on the second, and tensors in its answer return from the second to
// the first. A device is in at most one pair at each end, so that the way back is unique. Tensors
// on the CPU stay on the CPU.
using DeviceMap = std::vector<std::pair<c10::Device, c10::Device>>;

}  // namespace lockstep::inline v0::rpc
