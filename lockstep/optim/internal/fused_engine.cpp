#include "lockstep/optim/internal/fused_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/optim/gradient_norm.h"

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

double one_value(const at::Tensor& tensor, const char* name) {
  if (tensor.numel() != 1 || !at::isFloatingType(tensor.scalar_type()))
    throw InvalidArgument(std::string("fused optimizer: ") + name +
                          " must be one floating-point element");
  return tensor.item<double>();
}

// In the parameters' own order, whatever the buffers' order, so that equal models give equal bits.
double norm_of(const std::vector<Located>& located) {
  std::vector<const Located*> ordered;
  for (const Located& one : located) ordered.push_back(&one);
  std::sort(ordered.begin(), ordered.end(), [](const Located* a, const Located* b) {
    return std::pair(a->block->group, a->slot->index) < std::pair(b->block->group, b->slot->index);
  });
  std::vector<at::Tensor> gradients;
  for (const Located* one : ordered) gradients.push_back(one->gradient);
  return global_norm(gradients);
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

// What the gradients must be divided by, or nothing if the step is to be skipped.
std::optional<double> divisor_for(const std::vector<Located>& located, const StepOptions& options,
                                  StepResult* result) {
  if (options.max_norm && !(*options.max_norm > 0)) {
    throw InvalidArgument("fused optimizer: max_norm is " + std::to_string(*options.max_norm) +
                          ", it must be above 0");
  }
  const double scale =
      options.grad_scale.defined() ? one_value(options.grad_scale, "grad_scale") : 1;
  if (!(scale > 0)) throw InvalidArgument("fused optimizer: grad_scale must be above 0");
  const bool found = options.found_inf.defined();
  if (found && one_value(options.found_inf, "found_inf") != 0) return std::nullopt;
  double divisor = scale;
  if (options.max_norm || (options.grad_scale.defined() && !found)) {
    const double norm = norm_of(located) / scale;
    result->grad_norm = norm;
    if (!std::isfinite(norm)) {
      const bool skip =
          found || options.grad_scale.defined() || options.on_non_finite == NonFinite::kSkip;
      if (!skip) throw_non_finite(located);
      return std::nullopt;
    }
    if (options.max_norm) divisor *= std::max(1.0, (norm + 1e-6) / *options.max_norm);
  }
  return divisor;
}

// A parameter's state, in the block's buffers: made, or taken in where it came from a file or from
// torch's own optimizer.
struct Ready {
  OptimizerParamState* state;
  bool first;
};

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
  at::Tensor get(int64_t step, const at::Tensor& like) {
    at::Tensor& tensor = tensors_[step];
    if (!tensor.defined())
      tensor = at::full({}, static_cast<double>(step), like.options().dtype(at::kFloat));
    return tensor;
  }

 private:
  std::map<int64_t, at::Tensor> tensors_;
};

Launch launch_of(Block& block, const std::vector<Stretch>& stretches, bool first, size_t states,
                 double divisor) {
  Launch launch;
  launch.first = first;
  launch.states.resize(states);
  if (divisor != 1)
    launch.divisor = at::full({}, divisor, block.weights.options().dtype(at::kFloat));
  StepTensors steps;
  for (const Stretch& stretch : stretches) {
    if (stretch.first != first) continue;
    const int64_t numel = stretch.end - stretch.begin;
    launch.parameters.push_back(stretch.parameter);
    launch.weights.push_back(Block::stretch(block.weights, stretch.begin, numel));
    launch.gradients.push_back(
        stretch.gradient.as_strided({numel}, {1}, stretch.gradient.storage_offset()));
    for (size_t which = 0; which < states; ++which)
      launch.states[which].push_back(Block::stretch(block.state(which), stretch.begin, numel));
    launch.steps.push_back(steps.get(stretch.step, block.weights));
  }
  return launch;
}

}  // namespace

StepResult fused_step(Optimizer& optimizer, FlatGroups& flat, const StateKind& kind,
                      const StepOptions& options, const std::function<void(Launch&)>& kernel,
                      EngineOptions engine) {
  const at::NoGradGuard no_grad;
  flat.follow(optimizer.param_groups());
  const std::vector<Located> located = with_gradients(flat);
  StepResult result;
  const std::optional<double> divisor = divisor_for(located, options, &result);
  if (!divisor) {
    result.skipped = true;
    return result;
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
      Launch launch = launch_of(block, stretches, first, states, *divisor);
      launch.options = &group_options;
      if (!launch.weights.empty()) kernel(launch);
    }
  }
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
