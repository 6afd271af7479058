// Tensors in the bytes of files, and the names of their dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/mapped_file.h"

namespace lockstep::inline v0 {

// The safetensors name of a dtype, such as "BF16"; nullptr where there is none.
const char* safetensors_dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

// A contiguous tensor at byte `offset` of the file, which must contain it: no copy; the tensor
// keeps the map alive. Misaligned bytes are copied.
// Throws: CheckpointError that names the file and `tensor` for booleans other than 0 and 1.
at::Tensor mapped_tensor(const std::shared_ptr<MappedFile>& file, uint64_t offset,
                         at::IntArrayRef sizes, at::ScalarType dtype, const std::string& tensor);

}  // namespace lockstep::inline v0
