// The norm of gradients, for clipping by global norm (Pascanu et al., arXiv:1211.5063).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::optim {

// The sum of the squares of all elements. Takes dense floating-point tensors of any strides;
// undefined ones count as zero. Local: where a model is divided over ranks, the sums of the parts
// add up to the whole's.
//
// Deterministic: accumulated in float64 in an order that depends only on the tensors' sizes and the
// order of the list, not on threads, alignment, or the tensors' memory. (On devices other than the
// CPU, as deterministic as at::_foreach_norm.) Infinite or NaN if an element is. Runs on the
// calling thread, at about the speed of memory; waits for a device once.
// Throws: InvalidArgument for a tensor that is sparse or not floating-point.
LOCKSTEP_API double sum_of_squares(at::TensorList tensors);

// The same as float64 [1] on `device`, which has the tensors; the host does not wait.
LOCKSTEP_API at::Tensor sum_of_squares_on(at::Device device, at::TensorList tensors);

// sqrt(sum_of_squares()): torch::nn::utils::clip_grad_norm_'s norm of order 2, to 1e-6.
LOCKSTEP_API double global_norm(at::TensorList tensors);

// The same as one float64 element on the first tensor's device; the host does not wait.
LOCKSTEP_API at::Tensor global_norm_tensor(at::TensorList tensors);

// Multiplies the parameters' gradients in place so that their global norm is at most max_norm, as
// torch::nn::utils::clip_grad_norm_ does. Returns the former norm as global_norm_tensor(), so that
// the host waits only when it reads it. A norm that is not finite makes all gradients NaN or 0, as
// in torch. Local.
// Throws: InvalidArgument unless max_norm is above 0.
LOCKSTEP_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm);

// The pieces of clipping for models that are divided over ranks, where no rank can compute the norm
// alone.
// torch::nn::utils::clip_grad_norm_ adds this to the norm before it divides.
inline constexpr double kNormEpsilon = 1e-6;
// Throws: InvalidArgument that begins with `owner`, unless max_norm is above 0.
LOCKSTEP_API void check_max_norm(const std::string& owner, double max_norm);
// Multiplies gradients in place so that their norm, which is `norm`, becomes max_norm at most.
// Local.
LOCKSTEP_API void clip_by_norm(at::TensorList gradients, double norm, double max_norm);

// The gradients of those parameters that have one.
LOCKSTEP_API std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::inline v0::optim
