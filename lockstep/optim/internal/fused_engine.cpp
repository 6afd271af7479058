#include "lockstep/optim/internal/fused_engine.h"

#include <ATen/TensorOperators.h>
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

namespace lockstep::optim::internal {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

// The gradient, laid out as the parameter is: the kernels see memory, not shapes.
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

void check_one(const at::Tensor& tensor, const char* name) {
  if (tensor.defined() && (tensor.numel() != 1 || !at::isFloatingType(tensor.scalar_type())))
    throw InvalidArgument(std::string("fused optimizer: ") + name +
                          " must be one floating-point element");
}

void check_options(const StepOptions& options) {
  if (options.max_norm && !(*options.max_norm > 0)) {
    throw InvalidArgument("fused optimizer: max_norm is " + std::to_string(*options.max_norm) +
                          ", it must be above 0");
  }
  check_one(options.grad_scale, "grad_scale");
  check_one(options.found_inf, "found_inf");
}

// In the parameters' own order, whatever the buffers' order, so that equal models give equal bits.
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

[[noreturn]] void throw_non_finite(const std::vector<Located>& located) {
  std::string name = "no single one: their squares overflow";
  for (const Located& one : located) {
    if (!std::isfinite(sum_of_squares({one.gradient}))) {
      name = place(one.block->group, one.slot->index);
      break;
    }
  }
  throw Error("fused optimizer: the gradients' norm is not finite (first: " + name +
              "); the step was not taken. Lower the learning rate, look for a division by zero, or "
              "skip such steps (NonFinite::kSkip)");
}

struct Decision {
  bool skipped = false;  // by the host
  double divisor = 1;    // of the gradients
  // Where the device decides, one float32 each; no divisor: 1.
  std::optional<at::Tensor> device_divisor = std::nullopt;
  std::optional<at::Tensor> found_inf = std::nullopt;
};

// By values that the host reads.
Decision decide(const std::vector<Located>& located, const StepOptions& options,
                StepResult* result) {
  const double scale = options.grad_scale.defined() ? options.grad_scale.item<double>() : 1;
  if (!(scale > 0)) throw InvalidArgument("fused optimizer: grad_scale must be above 0");
  const bool found = options.found_inf.defined();
  if (found && options.found_inf.item<double>() != 0) return {.skipped = true};
  double divisor = scale;
  if (options.max_norm || (options.grad_scale.defined() && !found)) {
    const double norm = global_norm(ordered_gradients(located)) / scale;
    result->grad_norm = norm;
    if (!std::isfinite(norm)) {
      const bool skip =
          found || options.grad_scale.defined() || options.on_non_finite == NonFinite::kSkip;
      if (!skip) throw_non_finite(located);
      return {.skipped = true};
    }
    if (options.max_norm) divisor *= std::max(1.0, (norm + 1e-6) / *options.max_norm);
  }
  return {.divisor = divisor};
}

// Whether the device that all gradients are on can decide: all that a step needs is there, so that a step that is
// left out leaves nothing behind.
bool device_decides(const Optimizer& optimizer, const std::vector<Located>& located,
                    const StateKind& kind, const StepOptions& options) {
  const auto there = [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); };
  if (!there(options.found_inf) && !there(options.grad_scale) &&
      !(options.max_norm && options.on_non_finite == NonFinite::kSkip))
    return false;
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

Decision decide_on_device(const std::vector<Located>& located, const StepOptions& options,
                          StepResult* result) {
  const auto here = at::TensorOptions(at::kDouble).device(located.front().gradient.device());
  const auto bring = [&](const at::Tensor& one) {
    return one.is_cpu() ? at::full({}, one.item<double>(), here)
                        : one.detach().reshape({}).to(here, /*non_blocking=*/true);
  };
  at::Tensor divisor = options.grad_scale.defined() ? bring(options.grad_scale) : at::Tensor();
  at::Tensor found = options.found_inf.defined() ? bring(options.found_inf).ne(0) : at::Tensor();
  if (options.max_norm || !found.defined()) {
    at::Tensor norm = global_norm_tensor(ordered_gradients(located));
    if (divisor.defined()) norm = norm / divisor;
    result->norm = norm;
    const at::Tensor wrong = norm.isfinite().logical_not();
    found = found.defined() ? found.logical_or(wrong) : wrong;
    if (options.max_norm) {
      const at::Tensor excess = ((norm + 1e-6) / *options.max_norm).clamp_min(1);
      divisor = divisor.defined() ? divisor * excess : excess;
    }
  }
  Decision decision{.found_inf = found.to(at::kFloat)};
  if (divisor.defined()) decision.device_divisor = divisor.to(at::kFloat);
  return decision;
}

// Neighbours whose gradients lie side by side as they do themselves.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor gradient;  // of the first parameter
  int64_t step = 0;
  bool first = false;
  at::Tensor parameter = {};  // the first
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
  // Of `parameter`, which is at that step.
  at::Tensor get(int64_t step, const at::Tensor& parameter) {
    at::Tensor& tensor = tensors_[step];
    if (!tensor.defined()) {
      tensor = captured_ != nullptr
                   ? captured_->step_of(parameter)
                   : at::full({}, static_cast<double>(step), parameter.options().dtype(at::kFloat));
      if (left_out_.any()) tensor = tensor - left_out_.count();
    }
    return tensor;
  }

 private:
  const LeftOutSteps& left_out_;
  CapturedStep* captured_;
  std::map<int64_t, at::Tensor> tensors_;
};

Launch launch_of(Block& block, const std::vector<Stretch>& stretches, bool first, size_t states,
                 const Decision& decision, const LeftOutSteps& left_out, CapturedStep* captured) {
  Launch launch;
  launch.first = first;
  launch.states.resize(states);
  launch.found_inf = decision.found_inf;
  launch.divisor = decision.device_divisor;
  if (decision.divisor != 1)
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

// The capture that a step is part of, or null.
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

std::shared_ptr<CapturedStep> begin_captured(Optimizer& optimizer, FlatGroups& flat,
                                             const StateKind& kind,
                                             const std::vector<Located>& located,
                                             const EngineOptions& engine) {
  if (captured_by(located) == nullptr) return nullptr;
  if (!engine.in_graphs)
    throw InvalidArgument(
        "fused optimizer: a step of this kind cannot be captured in a graph, since the host "
        "computes with the learning rate and the step; FusedAdamW, FusedAdam and FusedSGD can");
  for (const Located& one : located) {
    if (kind.count(optimizer.param_groups()[one.block->group].options()) > 0 &&
        optimizer.state().count(one.slot->param.unsafeGetTensorImpl()) == 0)
      throw_first();
  }
  return std::make_shared<CapturedStep>(optimizer, flat, kind, located.front().gradient.device());
}

std::vector<at::Tensor> parameters_of(const std::vector<Located>& located) {
  std::vector<at::Tensor> parameters;
  for (const Located& one : located) parameters.push_back(one.slot->param);
  return parameters;
}

}  // namespace

Ready ready_state(Optimizer& optimizer, const StateKind& kind, Block& block, Slot& slot,
                  size_t count) {
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
  if (count_.defined())
    count_.add_(found_inf);
  else
    count_ = found_inf.clone();
  parameters_ = std::move(parameters);
  kind_ = &kind;
}

void LeftOutSteps::settle(const Optimizer& optimizer) {
  if (!count_.defined()) return;
  const auto count = static_cast<int64_t>(count_.item<float>());
  if (held_)
    count_.zero_();
  else
    count_ = at::Tensor();
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
  check_options(options);
  StepResult result;
  const bool on_device =
      engine.takes_found_inf && device_decides(optimizer, located, kind, options);
  std::vector<at::Tensor> stepping = parameters_of(located);
  // One count serves as long as the same parameters take all steps, and the device is asked in all.
  if (left_out.any() && (!on_device || !left_out.are_of(stepping))) left_out.settle(optimizer);
  const Decision decision =
      on_device ? decide_on_device(located, options, &result) : decide(located, options, &result);
  if (decision.skipped) {
    result.skipped = true;
    return result;
  }
  const std::shared_ptr<CapturedStep> captured =
      begin_captured(optimizer, flat, kind, located, engine);
  if (captured && decision.found_inf && kind.counts_steps()) {
    if (!left_out.any()) throw_first();
    left_out.hold();
  }
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
        const Ready ready = ready_state(optimizer, kind, block, slot, states);
        step = kind.steps(*ready.state) + 1;
        kind.set_steps(*ready.state, step);
        first = ready.first;
      }
      const at::Tensor& gradient = located[at].gradient;
      if (engine.one_parameter_a_stretch || stretches.empty() ||
          !continues(stretches.back(), slot, gradient, step, first)) {
        stretches.push_back({slot.offset, slot.offset, gradient, step, first, slot.param});
      }
      stretches.back().end = slot.offset + slot.numel;
      // As an in-place change would: autograd then notices a graph that saw the old values.
      slot.param.unsafeGetTensorImpl()->bump_version();
    }
    for (const bool first : {false, true}) {
      Launch launch =
          launch_of(block, stretches, first, states, decision, left_out, captured.get());
      launch.options = &group_options;
      if (!launch.weights.empty()) kernel(launch);
    }
  }
  if (captured) CapturedStep::join(captured, *captured_by(located), stepping);
  if (decision.found_inf && kind.counts_steps())
    left_out.add(*decision.found_inf, std::move(stepping), kind);
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

}  // namespace lockstep::optim::internal
