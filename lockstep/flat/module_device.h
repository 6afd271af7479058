// device_of(): the device on which a module computes.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The device of its first parameter, or buffer; the CPU where it has neither. Not meaningful for a
// module that is spread over several devices.
LOCKSTEP_API c10::Device device_of(const torch::nn::Module& module);

}  // namespace lockstep::inline v0
