// Measures the most that a device can do: other figures are held against it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>

namespace lockstep::inline v0::gpu_check {

// The least of several times, in seconds by the device's clock, that `work` takes there.
double best_seconds(c10::Device device, const std::function<void()>& work, int tries = 7);

// Floating point operations a second of a product of square matrices of this side.
double matmul_ceiling(c10::Device device, c10::ScalarType dtype, int64_t side);

// Bytes a second that are read and written by a copy of so many bytes on the device.
double copy_ceiling(c10::Device device, int64_t bytes);

// Bytes a second from pinned host memory to the device, or back.
double pinned_copy(c10::Device device, int64_t bytes, bool to_device);

}  // namespace lockstep::inline v0::gpu_check
