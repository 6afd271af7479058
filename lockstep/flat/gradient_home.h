// A gradient's place in a flat buffer, and how to learn that it has arrived there.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace lockstep::flat {

// A stretch of `flat` from element `offset`, with these sizes and strides, or contiguous; no view
// in autograd's eyes: Optimizer::zero_grad(false) calls detach_(), which autograd forbids on what
// it knows as one.
at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes,
                  at::IntArrayRef strides);
at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes);

// Whether `gradient` is dense and lies where `view` does, element by element.
bool lies_in(const at::Tensor& gradient, const at::Tensor& view);

// Whether somebody holds the memory of the parameter's gradient beside the parameter, and autograd,
// which passes `passed` on (on_gradient()) and needs it no longer.
bool kept_by_others(const at::Tensor& gradient, const at::Tensor& passed);

// Copies `gradient` into `view`, of the same sizes; sparse ones become dense.
void move_into(const at::Tensor& view, const at::Tensor& gradient);

// Calls `arrived` after each backward that has added to the parameter's gradient, on the thread
// that runs the backward, with what autograd passed on to be added; what it throws comes out of
// backward(). Until what is returned goes: the tensor holds its hook weakly. Several may be on one
// parameter.
std::shared_ptr<void> on_gradient(const at::Tensor& parameter,
                                  std::function<void(const at::Tensor& passed)> arrived);

}  // namespace lockstep::flat
