// The state of all ranks as one, in the form of checkpoint/optimizer_state.h.
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/optimizer_kind.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/optim/muon.h"
#include "lockstep/parallel/zero/internal/zero_state.h"
#include "lockstep/parallel/zero/internal/zero_update.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

struct PlainMuon final : torch::optim::SGD, OptimizerKind {
  using SGD::SGD;
  std::string kind() const override { return "Muon"; }
};

// A plain optimizer of the same kind over the same groups, for its state to be filled in or read.
std::unique_ptr<Optimizer> shadow_of(const std::vector<OptimizerParamGroup>& groups) {
  std::vector<OptimizerParamGroup> bare;
  for (const auto& group : groups) bare.emplace_back(group.params());
  const OptimizerOptions& first = groups.front().options();
  std::unique_ptr<Optimizer> shadow;
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&first))
    shadow = std::make_unique<torch::optim::AdamW>(bare, *adamw);
  else if (const auto* adam = dynamic_cast<const AdamOptions*>(&first))
    shadow = std::make_unique<torch::optim::Adam>(bare, *adam);
  else if (const auto* muon = dynamic_cast<const optim::MuonOptions*>(&first))
    shadow = std::make_unique<PlainMuon>(bare, *muon);
  else
    shadow = std::make_unique<torch::optim::SGD>(bare, static_cast<const SGDOptions&>(first));
  for (size_t i = 0; i < groups.size(); ++i)
    shadow->param_groups()[i].set_options(groups[i].options().clone());
  return shadow;
}

// A parameter's state in torch's object, in the order of ZeroBucket::states.
template <typename State>
std::vector<at::Tensor> adam_tensors(const OptimizerParamState& base) {
  const auto& state = static_cast<const State&>(base);
  return {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
}

template <typename State>
std::unique_ptr<OptimizerParamState> adam_state(const std::vector<at::Tensor>& tensors,
                                                int64_t steps) {
  auto state = std::make_unique<State>();
  state->step(steps);
  state->exp_avg(tensors[0]);
  state->exp_avg_sq(tensors[1]);
  if (tensors.size() > 2) state->max_exp_avg_sq(tensors[2]);
  return state;
}

std::unique_ptr<OptimizerParamState> param_state(const OptimizerOptions& options,
                                                 const std::vector<at::Tensor>& tensors,
                                                 int64_t steps) {
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr)
    return adam_state<AdamWParamState>(tensors, steps);
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr)
    return adam_state<AdamParamState>(tensors, steps);
  auto state = std::make_unique<SGDParamState>();
  state->momentum_buffer(tensors[0]);
  return state;
}

std::pair<std::vector<at::Tensor>, int64_t> read_state(const OptimizerOptions& options,
                                                       const OptimizerParamState& state) {
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr)
    return {adam_tensors<AdamWParamState>(state),
            static_cast<const AdamWParamState&>(state).step()};
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr)
    return {adam_tensors<AdamParamState>(state), static_cast<const AdamParamState&>(state).step()};
  // Plain SGD does not count: that there is a buffer is what matters.
  return {{static_cast<const SGDParamState&>(state).momentum_buffer()}, 1};
}

// This rank's part of a parameter's state: elements in the order in which they lie in memory.
void keep_part(internal::ZeroBucket& bucket, const internal::ZeroSlot& slot, int64_t bucket_origin,
               size_t which, const at::Tensor& whole) {
  if (slot.own.empty()) return;
  const int64_t numel = slot.own.end - slot.own.begin;
  const int64_t from = bucket_origin + slot.own.begin - slot.offset;
  const at::Tensor own = bucket.state(which).narrow(0, slot.own.begin, numel);
  if (!whole.defined()) {
    own.zero_();
    return;
  }
  own.copy_(whole.as_strided({numel}, {1}, whole.storage_offset() + from));
}

}  // namespace

Safetensors ZeroOptimizer::state_on_root() {
  const at::NoGradGuard no_grad;
  const auto shadow = shadow_of(param_groups());
  const bool root = state_->comm().rank() == 0;
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  for (internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    const OptimizerOptions& options = param_groups()[bucket.group].options();
    const size_t count = internal::count_of_states(options);
    const bool stepped = std::any_of(bucket.slots.begin(), bucket.slots.end(), [&](const auto& s) {
      return parameters[s.parameter].steps > 0;
    });
    if (!stepped || count == 0) continue;
    std::vector<at::Tensor> whole;
    for (size_t which = 0; which < count; ++which) {
      const at::Tensor& own = bucket.state(which);
      whole.push_back(state_->sharded() ? state_->comm().gather(own, 0) : own);
    }
    if (!root) continue;
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const internal::ZeroParameter& parameter = parameters[slot.parameter];
      if (parameter.steps == 0) continue;
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& flat : whole) {
        tensors.push_back(
            flat::window(flat, slot.offset, parameter.tensor.sizes(), parameter.tensor.strides()));
      }
      shadow->state()[parameter.tensor.unsafeGetTensorImpl()] =
          param_state(options, tensors, parameter.steps);
    }
  }
  return root ? optimizer_state(*shadow) : Safetensors();
}

void ZeroOptimizer::load_state(const Safetensors& state, const std::string& source) {
  const at::NoGradGuard no_grad;
  const auto shadow = shadow_of(param_groups());
  set_optimizer_state(*shadow, state, source);
  for (size_t i = 0; i < param_groups().size(); ++i)
    param_groups()[i].set_options(shadow->param_groups()[i].options().clone());
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  for (internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    const OptimizerOptions& options = param_groups()[bucket.group].options();
    const size_t count = internal::count_of_states(options);
    for (const internal::ZeroSlot& slot : bucket.slots) {
      internal::ZeroParameter& parameter = parameters[slot.parameter];
      std::vector<at::Tensor> tensors(3);
      parameter.steps = 0;
      const auto found = shadow->state().find(parameter.tensor.unsafeGetTensorImpl());
      if (found != shadow->state().end())
        std::tie(tensors, parameter.steps) = read_state(options, *found->second);
      tensors.resize(3);
      for (size_t which = 0; which < count; ++which)
        keep_part(bucket, slot, bucket.origin, which, tensors[which]);
    }
  }
}

}  // namespace lockstep
