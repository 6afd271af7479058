// Parameters that lie in a flat buffer, so that an optimizer updates them all at once and ranks
// send them without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace lockstep::inline v0::flat {

// Whether the tensor can lie in a flat buffer: defined, dense and floating-point.
bool can_be_flat(const at::Tensor& tensor);

// Two of the tensors, by index, that share memory; the one at the lower address first.
// Requires: can_be_flat() for all of them.
std::optional<std::pair<size_t, size_t>> find_shared_memory(std::span<const at::Tensor> tensors);

// Copies the parameter's values to element `offset` of `flat`, which has its dtype and device, and
// makes that its memory: the module's tensor lies there from then on, with its former strides where
// it was dense, otherwise contiguous. Other tensors that share its old memory do not follow.
void move_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

// The same without the copy: the values there, now or later, become the parameter's.
void adopt_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

// Whether the parameter still lies there. Moving a model to another dtype or device, or a second
// optimizer, takes it elsewhere.
bool is_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

}  // namespace lockstep::inline v0::flat
