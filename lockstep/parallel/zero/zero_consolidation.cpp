// The state of all ranks as one state, in the form of checkpoint/optimizer_state.h.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/optimizer_kind.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/muon.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"
#include "lockstep/parallel/zero/internal/zero_state.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0 {
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

constexpr const char* kMaster = "master_weight";

// A plain optimizer of the same kind over groups of the same shapes without memory, whose state is
// filled in or read; in float32 for parameters that have masters.
std::unique_ptr<Optimizer> shadow_of(const std::vector<OptimizerParamGroup>& groups, bool masters) {
  std::vector<OptimizerParamGroup> bare;
  for (const auto& group : groups) {
    std::vector<at::Tensor> params = group.params();
    for (at::Tensor& param : params) {
      const at::ScalarType dtype = param.scalar_type();
      param = at::empty_like(param,
                             at::TensorOptions()
                                 .dtype(internal::has_master(masters, dtype) ? at::kFloat : dtype)
                                 .device(at::kMeta));
    }
    bare.emplace_back(std::move(params));
  }
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

// From all groups, in order.
std::vector<const at::Tensor*> shadows_of(const Optimizer& shadow) {
  std::vector<const at::Tensor*> result;
  for (const OptimizerParamGroup& group : shadow.param_groups()) {
    for (const at::Tensor& param : group.params()) result.push_back(&param);
  }
  return result;
}

// A parameter's state in torch's object, made from tensors in the order of ZeroBucket::states.
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

int64_t steps_of(const OptimizerOptions& options, const OptimizerParamState& state) {
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr)
    return static_cast<const AdamWParamState&>(state).step();
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr)
    return static_cast<const AdamParamState&>(state).step();
  return 1;  // plain SGD has no count: only the existence of a buffer matters
}

// The names in optimizer_state.h of the tensors in ZeroBucket::states.
std::vector<std::string> state_names(const OptimizerOptions& options) {
  std::vector<std::string> names{"momentum_buffer"};
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr ||
      dynamic_cast<const AdamOptions*>(&options) != nullptr)
    names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  names.resize(optim::states_of(options));
  return names;
}

// Plain SGD and Muon do not count steps.
bool counts_steps(const OptimizerOptions& options) {
  return dynamic_cast<const SGDOptions*>(&options) == nullptr;
}

std::string prefix_of(const internal::ZeroSlot& slot) {
  return std::to_string(slot.parameter) + ".";
}

// The beginning of this rank's part of the parameter, in elements in memory order.
int64_t begin_of(const internal::ZeroBucket& bucket, const internal::ZeroSlot& slot) {
  return bucket.origin + slot.own.begin - slot.offset;
}

at::Tensor own_part_of(const at::Tensor& flat, const internal::ZeroSlot& slot) {
  return flat.narrow(0, slot.own.begin, slot.own.end - slot.own.begin);
}

bool is_master(const std::string& name) {
  return name.ends_with(std::string(".") + kMaster);
}

// Whether elements lie in the same order.
bool same_order(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

// Keeps this rank's part of a parameter's state; zeros if there is none.
void keep_part(const at::Tensor& own, const SlicedTensor* state, int64_t begin,
               const at::Tensor& parameter) {
  if (state == nullptr) {
    own.zero_();
  } else if (same_order(parameter.sizes(), state->strides, parameter.strides())) {
    state->read(begin, own);
  } else {
    const at::Tensor whole =
        at::empty_strided(parameter.sizes(), parameter.strides(), own.options())
            .copy_(state->whole());
    own.copy_(whole.as_strided({own.numel()}, {1}, whole.storage_offset() + begin));
  }
}

// A description of the state without its memory: enough for set_optimizer_state() to check it.
Safetensors outline_of(const SlicedTensors& state, const std::string& source, bool masters) {
  Safetensors outline{.tensors = {}, .metadata = state.metadata};
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor.complete()) throw CheckpointError(source + ": " + name + " is there in part only");
    if (masters && is_master(name)) continue;
    const bool count = tensor.dtype == at::kLong && tensor.numel() == 1;
    outline.tensors.emplace_back(
        name,
        count ? tensor.whole()
              : at::empty(tensor.sizes, at::TensorOptions().dtype(tensor.dtype).device(at::kMeta)));
  }
  return outline;
}

// Only this optimizer uses masters: one for each parameter that has one, of its shape, in float32.
void check_masters(const SlicedTensors& state, const std::vector<const at::Tensor*>& outlines,
                   const std::vector<internal::ZeroBucket>& buckets, const std::string& source) {
  std::set<std::string> known;
  for (const internal::ZeroBucket& bucket : buckets) {
    if (!bucket.own_master.defined()) continue;
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const std::string name = prefix_of(slot) + kMaster;
      known.insert(name);
      const SlicedTensor* found = state.find(name);
      if (found != nullptr && (found->dtype != at::kFloat ||
                               at::IntArrayRef(found->sizes) != outlines[slot.parameter]->sizes()))
        throw CheckpointError(source + ": " + name +
                              " has another shape or dtype than its parameter");
    }
  }
  for (const auto& [name, tensor] : state.tensors) {
    if (is_master(name) && !known.contains(name))
      throw CheckpointError(source + ": " + name + " belongs to no parameter that has a master");
  }
}

}  // namespace

Safetensors ZeroOptimizer::state_on_root() {
  settle();
  const at::NoGradGuard no_grad;
  const bool masters = state_->has_masters();
  const auto shadow = shadow_of(param_groups(), masters);
  const std::vector<const at::Tensor*> outlines = shadows_of(*shadow);
  NamedTensors all_masters;
  const bool root = state_->comm().rank() == 0;
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  const auto gathered = [&](const at::Tensor& own) {
    return state_->sharded() ? state_->parts().gather(own, 0) : own;
  };
  const auto of_slot = [&](const at::Tensor& flat, const internal::ZeroSlot& slot) {
    const at::Tensor& like = parameters[slot.parameter].tensor;
    return flat::window(flat, slot.offset, like.sizes(), like.strides());
  };
  for (internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    if (bucket.own_master.defined()) {
      const at::Tensor whole = gathered(bucket.own_master);
      for (const internal::ZeroSlot& slot : bucket.slots)
        if (root) all_masters.emplace_back(prefix_of(slot) + kMaster, of_slot(whole, slot));
    }
    const OptimizerOptions& options = param_groups()[bucket.group].options();
    const size_t count = optim::states_of(options);
    const bool stepped = std::any_of(bucket.slots.begin(), bucket.slots.end(), [&](const auto& s) {
      return parameters[s.parameter].steps > 0;
    });
    if (!stepped || count == 0) continue;
    std::vector<at::Tensor> whole;
    for (size_t which = 0; which < count; ++which) whole.push_back(gathered(bucket.state(which)));
    if (!root) continue;
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const internal::ZeroParameter& parameter = parameters[slot.parameter];
      if (parameter.steps == 0) continue;
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& flat : whole) tensors.push_back(of_slot(flat, slot));
      shadow->state()[outlines[slot.parameter]->unsafeGetTensorImpl()] =
          param_state(options, tensors, parameter.steps);
    }
  }
  if (!root) return {};
  Safetensors result = optimizer_state(*shadow);
  result.tensors.insert(result.tensors.end(), all_masters.begin(), all_masters.end());
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return result;
}

SlicedTensors ZeroOptimizer::own_state() {
  settle();
  const at::NoGradGuard no_grad;
  SlicedTensors result;
  result.metadata = optimizer_state(*shadow_of(param_groups(), false)).metadata;
  const bool root = state_->comm().rank() == 0;
  if (!state_->sharded() && !root) return result;
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  for (internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    const OptimizerOptions& options = param_groups()[bucket.group].options();
    const std::vector<std::string> names = state_names(options);
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const internal::ZeroParameter& parameter = parameters[slot.parameter];
      const at::Tensor& tensor = parameter.tensor;
      // A parameter without elements belongs to no rank's part, but must appear.
      const bool here = !slot.own.empty() || (root && slot.numel == 0);
      const auto add = [&](const char* name, const at::Tensor& flat) {
        if (!here) return;
        const at::Tensor own =
            slot.numel == 0 ? at::empty({0}, flat.options()) : own_part_of(flat, slot);
        const int64_t begin = slot.numel == 0 ? 0 : begin_of(bucket, slot);
        result.tensors.emplace(prefix_of(slot) + name,
                               slice_of(tensor.sizes(), tensor.strides(), begin, own));
      };
      if (bucket.own_master.defined()) add(kMaster, bucket.own_master);
      if (parameter.steps == 0) continue;
      if (root && counts_steps(options)) {
        const at::Tensor steps = at::full({1}, parameter.steps, at::kLong);
        result.tensors.emplace(prefix_of(slot) + "step", slice_of({}, {}, 0, steps));
      }
      for (size_t which = 0; here && which < names.size(); ++which)
        add(names[which].c_str(), bucket.state(which));
    }
  }
  return result;
}

SlicedTensors ZeroOptimizer::own_parameters() const {
  SlicedTensors result;
  if (!state_->sharded() && state_->comm().rank() != 0) return result;
  const bool root = state_->comm().rank() == 0;
  for (const internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const internal::ZeroParameter& parameter = state_->buckets().parameters()[slot.parameter];
      const bool none = slot.numel == 0;
      if (none ? !root : slot.own.empty()) continue;
      const at::Tensor own = none ? at::empty({0}, bucket.own_parameters.options())
                                  : own_part_of(bucket.own_parameters, slot);
      result.tensors.emplace(parameter.name,
                             slice_of(parameter.tensor.sizes(), parameter.tensor.strides(),
                                      none ? 0 : begin_of(bucket, slot), own));
    }
  }
  return result;
}

NamedTensors ZeroOptimizer::parameters_on_root() {
  const at::NoGradGuard no_grad;
  NamedTensors all;
  const bool root = state_->comm().rank() == 0;
  for (const internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    const at::Tensor whole = state_->sharded() ? state_->parts().gather(bucket.own_parameters, 0)
                                               : bucket.own_parameters;
    if (!root) continue;
    for (const internal::ZeroSlot& slot : bucket.slots) {
      const internal::ZeroParameter& parameter = state_->buckets().parameters()[slot.parameter];
      const at::Tensor& like = parameter.tensor;
      all.emplace_back(
          parameter.name,
          flat::window(whole, slot.offset, like.sizes(), like.strides()).to(at::kCPU, false, true));
    }
  }
  return all;
}

void ZeroOptimizer::load_parameters(const SlicedTensors& values, const std::string& source) {
  settle();
  const at::NoGradGuard no_grad;
  internal::ZeroBuckets& buckets = state_->buckets();
  for (const internal::ZeroParameter& parameter : buckets.parameters()) {
    const SlicedTensor* const found = values.find(parameter.name);
    if (found == nullptr)
      throw CheckpointError(source + ": has no tensor '" + parameter.name + "'");
    if (parameter.tensor.sizes() != at::IntArrayRef(found->sizes) || !found->complete())
      throw CheckpointError(source + ": '" + parameter.name +
                            "' has another shape than the model's, or is there in part only");
  }
  // Prefetches still read them, and so may other ranks that share the memory.
  if (buckets.units()) buckets.units()->before_change();
  state_->comm().barrier();
  for (internal::ZeroBucket& bucket : buckets.buckets()) {
    for (const internal::ZeroSlot& slot : bucket.slots) {
      if (slot.own.empty()) continue;
      const internal::ZeroParameter& parameter = buckets.parameters()[slot.parameter];
      const SlicedTensor& stored = *values.find(parameter.name);
      const at::Tensor own = own_part_of(bucket.own_values(), slot);
      const at::Tensor read =
          at::empty(own.sizes(), at::TensorOptions(stored.dtype));  // on the host
      keep_part(read, &stored, begin_of(bucket, slot), parameter.tensor);
      own.copy_(read);
    }
    if (bucket.own_master.defined()) bucket.own_parameters.copy_(bucket.own_master);
  }
  state_->parameters_changed();
}

void ZeroOptimizer::forget_forwards() {
  if (const auto& units = state_->buckets().units()) units->forget_forwards();
}

void ZeroOptimizer::load_state(const SlicedTensors& state, const std::string& source) {
  settle();
  if (const auto& units = state_->buckets().units()) units->take_back();
  const at::NoGradGuard no_grad;
  const bool masters = state_->has_masters();
  const auto shadow = shadow_of(param_groups(), masters);
  const std::vector<const at::Tensor*> outlines = shadows_of(*shadow);
  if (masters) check_masters(state, outlines, state_->buckets().buckets(), source);
  set_optimizer_state(*shadow, outline_of(state, source, masters), source);
  std::vector<internal::ZeroParameter>& parameters = state_->buckets().parameters();
  for (size_t i = 0; i < param_groups().size(); ++i)
    param_groups()[i].set_options(shadow->param_groups()[i].options().clone());
  for (internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    const OptimizerOptions& options = param_groups()[bucket.group].options();
    const std::vector<std::string> names = state_names(options);
    for (const internal::ZeroSlot& slot : bucket.slots) {
      internal::ZeroParameter& parameter = parameters[slot.parameter];
      parameter.steps = 0;
      const auto found = shadow->state().find(outlines[slot.parameter]->unsafeGetTensorImpl());
      if (found != shadow->state().end()) parameter.steps = steps_of(options, *found->second);
      if (slot.own.empty()) continue;
      const int64_t begin = begin_of(bucket, slot);
      for (size_t which = 0; which < names.size(); ++which)
        keep_part(own_part_of(bucket.state(which), slot),
                  state.find(prefix_of(slot) + names[which]), begin, parameter.tensor);
      if (!bucket.own_master.defined()) continue;
      if (const SlicedTensor* master = state.find(prefix_of(slot) + kMaster))
        keep_part(own_part_of(bucket.own_master, slot), master, begin, parameter.tensor);
      else
        own_part_of(bucket.own_master, slot).copy_(own_part_of(bucket.own_parameters, slot));
    }
  }
}

}  // namespace lockstep::inline v0
