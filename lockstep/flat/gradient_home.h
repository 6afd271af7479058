// A gradient's place in a flat buffer, and a hook for its arrival.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace lockstep::inline v0::flat {

// A stretch of `flat` from element `offset`, with these sizes and strides, or contiguous. It is not
// a view for autograd: Optimizer::zero_grad(false) calls detach_(), which autograd forbids on
// views.
at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes,
                  at::IntArrayRef strides);
at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes);

// Whether `gradient` is dense and lies where `view` does, element by element.
bool lies_in(const at::Tensor& gradient, const at::Tensor& view);

// Whether the gradient's memory has owners other than the parameter and autograd, which passes
// `passed` on (on_gradient()) and needs it no longer.
bool kept_by_others(const at::Tensor& gradient, const at::Tensor& passed);

// Copies `gradient` into `view`, which has the same sizes; sparse ones become dense.
void move_into(const at::Tensor& view, const at::Tensor& gradient);

// Calls `arrived` after each backward that has added to the parameter's gradient, on the thread
// that runs the backward, with the tensor that autograd passed on to be added; its exceptions leave
// backward(). It lasts as long as the returned object: the tensor holds its hook weakly. A
// parameter may have several.
std::shared_ptr<void> on_gradient(const at::Tensor& parameter,
                                  std::function<void(const at::Tensor& passed)> arrived);

}  // namespace lockstep::inline v0::flat
