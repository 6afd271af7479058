// device_of(): where a module computes.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace lockstep {

// The device of its first parameter, or buffer; the CPU where it has neither. One that is spread over
// several devices has no such thing.
c10::Device device_of(const torch::nn::Module& module);

}  // namespace lockstep
