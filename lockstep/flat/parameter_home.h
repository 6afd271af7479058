// Parameters that lie in a flat buffer, so that an optimizer updates them all at once and ranks send
// them as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace lockstep::flat {

// Whether the tensor can lie in a flat buffer: defined, dense and floating-point.
bool can_be_flat(const at::Tensor& tensor);

// Two of the tensors, by index, that share memory; the first by address. Tensors that can be flat.
std::optional<std::pair<size_t, size_t>> find_shared_memory(std::span<const at::Tensor> tensors);

// Copies the parameter's values to element `offset` of `flat`, which has its dtype and device, and
// makes that its memory: the module's tensor lies there from then on, with the strides that it had
// where it was dense, else contiguous. Whatever else shares its old memory does not follow.
void move_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

// The same without the copy: the values are those that lie there, or will.
void adopt_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

// Whether the parameter still lies there. A model that was moved to another dtype or device, or a
// second optimizer, takes it elsewhere.
bool is_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

}  // namespace lockstep::flat
