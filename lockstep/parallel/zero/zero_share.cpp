// A rank's share of parameters and state as bytes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/parallel/zero/internal/zero_state.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0 {
namespace {

// The layout: [whether there are moments] [steps of each parameter], then for each bucket the
// rank's parameters, master, moments.
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

bool has_stepped(internal::ZeroState& state) {
  const auto& parameters = state.buckets().parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const internal::ZeroParameter& p) { return p.steps > 0; });
}

}  // namespace

at::Tensor ZeroOptimizer::share(at::Tensor memory) const {
  const int64_t bytes = share_bytes();
  if (!memory.defined() || memory.numel() < bytes) memory = at::empty({bytes}, at::kByte);
  at::Tensor share = memory.narrow(0, 0, bytes);
  write_share(share);
  return share;
}

int64_t ZeroOptimizer::share_bytes() const {
  settle();
  return static_cast<int64_t>(layout_of(*state_, *this, has_stepped(*state_)).bytes);
}

void ZeroOptimizer::write_share(const at::Tensor& into) const {
  settle();
  const at::NoGradGuard no_grad;
  const bool stepped = has_stepped(*state_);
  const Layout layout = layout_of(*state_, *this, stepped);
  if (into.scalar_type() != at::kByte || into.dim() != 1 || !into.is_contiguous() ||
      into.nbytes() != layout.bytes)
    throw InvalidArgument("ZeroOptimizer::write_share(): give uint8 [share_bytes()], contiguous");
  std::vector<int64_t> head{stepped ? 1 : 0};
  for (const internal::ZeroParameter& parameter : state_->buckets().parameters())
    head.push_back(parameter.steps);
  std::memcpy(into.mutable_data_ptr(), head.data(), layout.head);
  auto at = static_cast<int64_t>(layout.head);
  for (const at::Tensor& tensor : layout.tensors) {
    const auto count = static_cast<int64_t>(tensor.nbytes());
    into.narrow(0, at, count).copy_(tensor.view(at::kByte));
    at += count;
  }
}

void ZeroOptimizer::restore_share(const at::Tensor& share) {
  settle();
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
  // Prefetches still read them.
  if (const auto& units = state_->buckets().units()) units->before_change();
  // Copies parameters one by one, so that an optimizer whose moments are files does not hold all of
  // them twice.
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

}  // namespace lockstep::inline v0
