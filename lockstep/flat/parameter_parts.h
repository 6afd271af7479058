// A whole model's values, a part at a time, for ranks of which none has the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::inline v0 {

// Copies the elements [begin, begin + part.numel()) of the parameter with that name into `part`,
// 1-D and contiguous (TransformerLm::drawn_parts(), lm_stored_parts()).
using ParameterParts =
    std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>;

}  // namespace lockstep::inline v0
