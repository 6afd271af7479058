#include "lockstep/optim/internal/fused_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/internal/captured_step.h"
#include "lockstep/optim/step_decision.h"

namespace lockstep::inline v0::optim::internal {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr const char* kWho = "fused optimizer";

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

// The gradient in the parameter's layout, because the kernels work on memory and ignore shapes.
const at::Tensor& gradient_of(const Block& block, Slot& slot) {
  at::Tensor& gradient = slot.param.mutable_grad();
  if (!gradient.defined()) return gradient;
  if (gradient.layout() != at::kStrided) {
    throw InvalidArgument("fused optimizer: the gradient of " + place(block.group, slot.index) +
                          " is sparse; give this parameter to another optimizer");
  }
  if (gradient.scalar_type() != slot.param.scalar_type() ||
      gradient.device() != slot.param.device() || gradient.sizes() != slot.param.sizes()) {
    throw InvalidArgument("fused optimizer: the gradient of " + place(block.group, slot.index) +
                          " has another dtype, device or shape than the parameter");
  }
  if (!same_layout(gradient, slot.param)) {
    gradient = at::empty_strided(slot.param.sizes(), slot.param.strides(), gradient.options())
                   .copy_(gradient);
  }
  return gradient;
}

struct Located {
  Block* block;
  Slot* slot;
  at::Tensor gradient;
};

std::vector<Located> with_gradients(FlatGroups& flat) {
  std::vector<Located> result;
  for (Block& block : flat.blocks()) {
    for (Slot& slot : block.slots) {
      const at::Tensor& gradient = gradient_of(block, slot);
      if (gradient.defined() && slot.numel > 0) result.push_back({&block, &slot, gradient});
    }
  }
  return result;
}

// Returned in the parameters' own order, whatever the buffers' order, so that equal models give
// equal bits.
std::vector<at::Tensor> ordered_gradients(const std::vector<Located>& located) {
  std::vector<const Located*> ordered;
  for (const Located& one : located) ordered.push_back(&one);
  std::sort(ordered.begin(), ordered.end(), [](const Located* a, const Located* b) {
    return std::pair(a->block->group, a->slot->index) < std::pair(b->block->group, b->slot->index);
  });
  std::vector<at::Tensor> gradients;
  for (const Located* one : ordered) gradients.push_back(one->gradient);
  return gradients;
}

std::string first_not_finite(const std::vector<Located>& located) {
  for (const Located& one : located) {
    if (!std::isfinite(sum_of_squares({one.gradient})))
      return place(one.block->group, one.slot->index);
  }
  return "no single one: their squares overflow";
}

// Whether the device that all gradients are on can decide: all state for a step exists, so that a
// skipped step leaves no traces.
bool device_decides(const Optimizer& optimizer, const std::vector<Located>& located,
                    const StateKind& kind, const StepOptions& options) {
  if (!device_may_decide(options)) return false;
  for (const Located& one : located) {
    const at::Tensor& gradient = one.gradient;
    if (gradient.is_cpu() || gradient.device() != located.front().gradient.device()) return false;
    const auto& group = optimizer.param_groups()[one.block->group];
    if (kind.count(group.options()) > 0 &&
        optimizer.state().count(one.slot->param.unsafeGetTensorImpl()) == 0)
      return false;
  }
  return !located.empty();
}

StepDecision decide(bool on_device, const std::vector<Located>& located, const StepOptions& options,
                    StepResult* result) {
  if (on_device)
    return decide_step_on_device(
        options, located.front().gradient.device(),
        [&] { return global_norm_tensor(ordered_gradients(located)); }, result);
  return decide_step(
      options, kWho, [&] { return global_norm(ordered_gradients(located)); },
      [&] { return first_not_finite(located); }, result);
}

// Adjacent parameters whose gradients are adjacent in the same way.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor gradient;  // the first parameter's gradient
  int64_t step = 0;
  bool first = false;
  at::Tensor parameter = {};  // the first parameter
};

bool continues(const Stretch& stretch, const Slot& slot, const at::Tensor& gradient, int64_t step,
               bool first) {
  const int64_t element = gradient.element_size();
  const auto begin = reinterpret_cast<intptr_t>(stretch.gradient.const_data_ptr());
  const auto here = reinterpret_cast<intptr_t>(gradient.const_data_ptr());
  return stretch.step == step && stretch.first == first &&
         gradient.storage().is_alias_of(stretch.gradient.storage()) &&
         here - begin == (slot.offset - stretch.begin) * element &&
         (slot.offset - stretch.end) * element < 64;
}

class StepTensors {
 public:
  StepTensors(const LeftOutSteps& left_out, CapturedStep* captured)
      : left_out_(left_out), captured_(captured) {}
  // The state of `parameter`, which is at that step.
  at::Tensor get(int64_t step, const at::Tensor& parameter) {
    at::Tensor& tensor = tensors_[step];
    if (!tensor.defined()) {
      tensor = captured_ != nullptr
                   ? captured_->step_of(parameter)
                   : at::full({}, static_cast<double>(step), parameter.options().dtype(at::kFloat));
      if (captured_ != nullptr ? captured_->leaves_out() : left_out_.any())
        tensor = tensor.sub(left_out_.count());
    }
    return tensor;
  }

 private:
  const LeftOutSteps& left_out_;
  CapturedStep* captured_;
  std::map<int64_t, at::Tensor> tensors_;
};

Launch launch_of(Block& block, const std::vector<Stretch>& stretches, bool first, size_t states,
                 const StepDecision& decision, const LeftOutSteps& left_out,
                 CapturedStep* captured) {
  Launch launch;
  launch.first = first;
  launch.states.resize(states);
  if (decision.found_inf.defined()) launch.found_inf = decision.found_inf;
  if (decision.device_divisor.defined())
    launch.divisor = decision.device_divisor;
  else if (decision.divisor != 1)
    launch.divisor = at::full({}, decision.divisor, block.weights.options().dtype(at::kFloat));
  if (captured != nullptr) launch.learning_rate = captured->learning_rate(block.group);
  StepTensors steps(left_out, captured);
  for (const Stretch& stretch : stretches) {
    if (stretch.first != first) continue;
    const int64_t numel = stretch.end - stretch.begin;
    launch.parameters.push_back(stretch.parameter);
    launch.weights.push_back(Block::stretch(block.weights, stretch.begin, numel));
    launch.gradients.push_back(
        stretch.gradient.as_strided({numel}, {1}, stretch.gradient.storage_offset()));
    for (size_t which = 0; which < states; ++which)
      launch.states[which].push_back(Block::stretch(block.state(which), stretch.begin, numel));
    launch.steps.push_back(steps.get(stretch.step, stretch.parameter));
  }
  return launch;
}

// The capture that a step belongs to, or null.
device::Capture* captured_by(const std::vector<Located>& located) {
  if (!device::anybody_captures() || located.empty()) return nullptr;
  const at::Device device = located.front().gradient.device();
  return device.is_cpu() ? nullptr : device::capture_of(device::current_stream(device));
}

[[noreturn]] void throw_first() {
  throw InvalidArgument(
      "fused optimizer: the first step of a parameter makes its state and cannot be captured in a "
      "graph; take two steps before");
}

std::vector<at::Tensor> parameters_of(const std::vector<Located>& located) {
  std::vector<at::Tensor> parameters;
  for (const Located& one : located) parameters.push_back(one.slot->param);
  return parameters;
}

std::shared_ptr<CapturedStep> begin_captured(Optimizer& optimizer, FlatGroups& flat,
                                             const StateKind& kind,
                                             const std::vector<Located>& located,
                                             const EngineOptions& engine, LeftOutSteps* left_out) {
  device::Capture* const capture = captured_by(located);
  if (capture == nullptr) return nullptr;
  if (!engine.in_graphs)
    throw InvalidArgument(
        "fused optimizer: a step of this kind cannot be captured in a graph, since the host "
        "computes with the learning rate and the step; FusedAdamW, FusedAdam and FusedSGD can");
  for (const Located& one : located) {
    const size_t count = kind.count(optimizer.param_groups()[one.block->group].options());
    const auto state = optimizer.state().find(one.slot->param.unsafeGetTensorImpl());
    if (count > 0 && state == optimizer.state().end()) throw_first();
    for (size_t which = 0; which < count; ++which)
      if (!kind.tensor(*state->second, which).defined()) throw_first();
  }
  if (left_out != nullptr) {
    if (!left_out->made()) throw_first();
    left_out->hold();
  }
  auto captured = std::make_shared<CapturedStep>(
      optimizer, flat, kind, left_out, parameters_of(located), located.front().gradient.device());
  CapturedStep::join(captured, *capture);
  return captured;
}

}  // namespace

Ready ready_state(Optimizer& optimizer, const StateKind& kind, Block& block, Slot& slot,
                  size_t count, CapturedStep* captured) {
  auto& entry = optimizer.state()[slot.param.unsafeGetTensorImpl()];
  if (entry == nullptr) entry = kind.make();
  bool first = true;
  for (size_t which = 0; which < count; ++which) {
    at::Tensor& held = kind.tensor(*entry, which);
    const at::Tensor& buffer = block.state(which);
    const void* home =
        static_cast<const char*>(buffer.const_data_ptr()) + slot.offset * buffer.element_size();
    if (held.defined() && held.const_data_ptr() == home) {
      first = false;
      continue;
    }
    const at::Tensor view = Block::shaped(buffer, slot);
    if (held.defined()) {
      // A graph would copy it again in each replay, from memory that has been freed.
      if (captured != nullptr)
        captured->bring_home(held, view);
      else
        view.copy_(held);
      first = false;
    } else {
      view.zero_();
    }
    held = view;
  }
  return {entry.get(), first};
}

bool LeftOutSteps::are_of(const std::vector<at::Tensor>& parameters) const {
  return std::equal(parameters_.begin(), parameters_.end(), parameters.begin(), parameters.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

void LeftOutSteps::add(const at::Tensor& found_inf, std::vector<at::Tensor> parameters,
                       const StateKind& kind) {
  if (count_.defined() && count_.device() == found_inf.device())
    count_.add_(found_inf);
  else
    count_ = found_inf.clone();
  pending_ = true;
  parameters_ = std::move(parameters);
  kind_ = &kind;
}

void LeftOutSteps::set_of(const Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
                          const StateKind& kind) {
  if (are_of(parameters)) return;
  settle(optimizer);
  parameters_ = parameters;
  kind_ = &kind;
}

void LeftOutSteps::settle(const Optimizer& optimizer) {
  if (!any()) return;
  pending_ = false;
  const auto count = static_cast<int64_t>(count_.item<float>());
  count_.zero_();
  for (const at::Tensor& parameter : parameters_) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    kind_->set_steps(*found->second, kind_->steps(*found->second) - count);
  }
}

StepResult fused_step(Optimizer& optimizer, FlatGroups& flat, LeftOutSteps& left_out,
                      const StateKind& kind, const StepOptions& options,
                      const std::function<void(Launch&)>& kernel, EngineOptions engine) {
  const at::NoGradGuard no_grad;
  flat.follow(optimizer.param_groups());
  const std::vector<Located> located = with_gradients(flat);
  check_step_options(options, kWho);
  StepResult result;
  const bool on_device =
      engine.takes_found_inf && device_decides(optimizer, located, kind, options);
  std::vector<at::Tensor> stepping = parameters_of(located);
  // One count is enough while the same parameters take all steps and the device decides each of
  // them.
  if (left_out.any() && (!on_device || !left_out.are_of(stepping))) left_out.settle(optimizer);
  const StepDecision decision = decide(on_device, located, options, &result);
  if (decision.skipped) {
    result.skipped = true;
    return result;
  }
  const bool counts_left_out = decision.found_inf.defined() && kind.counts_steps();
  const std::shared_ptr<CapturedStep> captured =
      begin_captured(optimizer, flat, kind, located, engine, counts_left_out ? &left_out : nullptr);
  for (size_t at = 0; at < located.size();) {
    Block& block = *located[at].block;
    const auto& group_options = optimizer.param_groups()[block.group].options();
    const size_t states = kind.count(group_options);
    std::vector<Stretch> stretches;
    for (; at < located.size() && located[at].block == &block; ++at) {
      Slot& slot = *located[at].slot;
      int64_t step = 0;
      bool first = false;
      if (states > 0) {
        const Ready ready = ready_state(optimizer, kind, block, slot, states, captured.get());
        step = kind.steps(*ready.state) + 1;
        kind.set_steps(*ready.state, step);
        if (captured) captured->takes(slot.param, step);
        first = ready.first;
      }
      const at::Tensor& gradient = located[at].gradient;
      if (engine.one_parameter_a_stretch || stretches.empty() ||
          !continues(stretches.back(), slot, gradient, step, first)) {
        stretches.push_back({slot.offset, slot.offset, gradient, step, first, slot.param});
      }
      stretches.back().end = slot.offset + slot.numel;
      // Like an in-place change: autograd then notices a graph that saved the old values.
      slot.param.unsafeGetTensorImpl()->bump_version();
    }
    for (const bool first : {false, true}) {
      Launch launch =
          launch_of(block, stretches, first, states, decision, left_out, captured.get());
      launch.options = &group_options;
      if (!launch.weights.empty()) kernel(launch);
    }
  }
  if (counts_left_out) left_out.add(decision.found_inf, std::move(stepping), kind);
  return result;
}

at::Tensor step_with_closure(const Optimizer::LossClosure& closure,
                             const std::function<void()>& step) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  step();
  return loss;
}

}  // namespace lockstep::inline v0::optim::internal
