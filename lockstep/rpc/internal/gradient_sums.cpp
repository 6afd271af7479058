#include "lockstep/rpc/internal/gradient_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "lockstep/rpc/internal/devices.h"

namespace lockstep::inline v0::rpc::internal {

void GradientSums::add(const Turn& turn, const at::Tensor& parameter, at::Tensor gradient) {
  waiting_[turn].emplace_back(parameter, std::move(gradient));
}

void GradientSums::settle_before(const Turn& open) {
  settle_until(waiting_.lower_bound(open));
}

void GradientSums::settle() {
  settle_until(waiting_.end());
}

void GradientSums::settle_until(Waiting::iterator end) {
  const at::NoGradGuard no_grad;
  while (waiting_.begin() != end) {
    const auto turn = waiting_.extract(waiting_.begin());
    for (const auto& [parameter, gradient] : turn.mapped()) {
      auto& [of, sum] = sums_[parameter.unsafeGetTensorImpl()];
      of = parameter;
      // Not in place: the gradient may be another tensor's memory, or autograd may still read it. A
      // sparse one is added to a dense one.
      if (!sum.defined()) {
        sum = gradient;
        continue;
      }
      const OnDefaultStreams streams({gradient.device()}, {});
      sum = sum.is_sparse() ? at::add(gradient, sum) : at::add(sum, gradient);
    }
  }
}

at::Tensor GradientSums::of(const at::Tensor& parameter) const {
  const auto found = sums_.find(parameter.unsafeGetTensorImpl());
  return found == sums_.end() ? at::Tensor() : found->second.second;
}

std::vector<GradientSums::ParameterAndGradient> GradientSums::all() const {
  std::vector<ParameterAndGradient> all;
  for (const auto& [impl, sum] : sums_) all.push_back(sum);
  return all;
}

size_t GradientSums::waiting() const {
  size_t count = 0;
  for (const auto& [turn, gradients] : waiting_) count += gradients.size();
  return count;
}

}  // namespace lockstep::inline v0::rpc::internal
