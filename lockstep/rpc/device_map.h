// DeviceMap: which devices of a peer stand for which of this process's.
#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace lockstep::rpc {

// Pairs of a device of this process and one of the peer's: {{cuda:0, cuda:1}}. What a call sends from
// the first arrives on the second, and what it answers from the second arrives on the first. A device is
// in at most one pair at each end, so that the way back is known. Tensors on the CPU stay on the CPU.
using DeviceMap = std::vector<std::pair<c10::Device, c10::Device>>;

}  // namespace lockstep::rpc
