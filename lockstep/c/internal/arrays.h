// Arrays of the C interface as tensors, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/c/base.h"
#include "lockstep/device/choose.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::c_api {

// A tensor over the array's memory, which the caller owns. `name` is what messages begin with.
// Throws: InvalidArgument, in one line.
at::Tensor tensor_of(const lockstep_array* array, const std::string& name);
std::vector<at::Tensor> tensors_of(const lockstep_array* arrays, int32_t count,
                                   const std::string& name);
// The same for arrays that are written: their elements must not share memory.
at::Tensor written_tensor(const lockstep_array* array, const std::string& name);
std::vector<at::Tensor> written_tensors(const lockstep_array* arrays, int32_t count,
                                        const std::string& name);

// A view of a tensor's memory, shape and strides; valid as long as the tensor.
// Throws: InvalidArgument for an element type that arrays lack.
lockstep_array array_of(const at::Tensor& tensor);

at::ScalarType dtype_of(int32_t dtype, const std::string& name);

// The device of a model: "cpu", "cuda", "cuda:1", "auto" or NULL. `local_rank` is this rank's number
// on its host, where it is known. Pure.
// Throws: InvalidArgument as choose_device(), and if a rank of unknown number would have to choose
// among several devices.
at::Device device_of(const char* device, std::optional<int> local_rank,
                     const device::VisibleDevices& visible);
// The same for this process, of the job's environment.
at::Device device_of(const char* device);

}  // namespace lockstep::inline v0::c_api
