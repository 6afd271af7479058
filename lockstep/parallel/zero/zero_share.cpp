// A rank's share of parameters and state as bytes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/parallel/zero/internal/zero_state.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep {
namespace {

// [whether there are moments] [steps of each parameter], then of each bucket the rank's parameters, master, moments.
struct Layout {
  size_t head = 0;
  std::vector<at::Tensor> tensors;
  size_t bytes = 0;
};

Layout layout_of(internal::ZeroState& state, const ZeroOptimizer& optimizer, bool moments) {
  Layout layout;
  layout.head = (1 + state.buckets().parameters().size()) * sizeof(int64_t);
  layout.bytes = layout.head;
  const auto add = [&](const at::Tensor& tensor) {
    layout.tensors.push_back(tensor);
    layout.bytes += tensor.nbytes();
  };
  for (internal::ZeroBucket& bucket : state.buckets().buckets()) {
    add(bucket.own_parameters);
    if (bucket.own_master.defined()) add(bucket.own_master);
    const size_t count = optim::states_of(optimizer.param_groups()[bucket.group].options());
    for (size_t which = 0; moments && which < count; ++which) add(bucket.state(which));
  }
  return layout;
}

}  // namespace

at::Tensor ZeroOptimizer::share() const {
  const at::NoGradGuard no_grad;
  const std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  std::vector<int64_t> head{0};
  for (const internal::ZeroParameter& parameter : parameters) {
    head.push_back(parameter.steps);
    if (parameter.steps > 0) head[0] = 1;
  }
  const Layout layout = layout_of(*state_, *this, head[0] != 0);
  const at::Tensor share = at::empty({static_cast<int64_t>(layout.bytes)}, at::kByte);
  std::memcpy(share.mutable_data_ptr(), head.data(), layout.head);
  auto at = static_cast<int64_t>(layout.head);
  for (const at::Tensor& tensor : layout.tensors) {
    const auto count = static_cast<int64_t>(tensor.nbytes());
    share.narrow(0, at, count).copy_(tensor.view(at::kByte));
    at += count;
  }
  return share;
}

void ZeroOptimizer::restore_share(const at::Tensor& share) {
  const at::NoGradGuard no_grad;
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  std::vector<int64_t> head(1 + parameters.size());
  const auto refuse = [&](const std::string& why) {
    throw DataError("ZeroOptimizer::restore_share(): " + why +
                    "; it is of another model, other options, or another number of ranks");
  };
  if (share.scalar_type() != at::kByte || share.dim() != 1 || !share.is_contiguous())
    refuse("a share is uint8, 1-D and contiguous");
  if (share.nbytes() < head.size() * sizeof(int64_t)) refuse("it is too short");
  std::memcpy(head.data(), share.const_data_ptr(), head.size() * sizeof(int64_t));
  if (head[0] != 0 && head[0] != 1) refuse("it is damaged");
  const Layout layout = layout_of(*state_, *this, head[0] != 0);
  if (layout.bytes != share.nbytes())
    refuse("it has " + std::to_string(share.nbytes()) + " bytes instead of " +
           std::to_string(layout.bytes));
  // Parameters one by one, so that an optimizer whose moments are files does not hold all of them twice.
  auto at = static_cast<int64_t>(layout.head);
  for (const at::Tensor& tensor : layout.tensors) {
    const auto count = static_cast<int64_t>(tensor.nbytes());
    tensor.view(at::kByte).copy_(share.narrow(0, at, count));
    at += count;
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].steps = head[1 + i];
  if (head[0] == 0) {
    for (internal::ZeroBucket& bucket : state_->buckets().buckets())
      for (at::Tensor& moment : bucket.states) moment.zero_();
  }
  state_->parameters_changed();
}

}  // namespace lockstep
