#include "lockstep/amp/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/pending_gradients.h"
#include "lockstep/flat/steps_on_device.h"

namespace lockstep::inline v0::amp {
namespace {

void check(const GradScalerOptions& options) {
  if (!(options.init_scale > 0) || !std::isfinite(options.init_scale))
    throw InvalidArgument("GradScaler: the scale must be above 0 and finite");
  if (!(options.growth_factor > 1))
    throw InvalidArgument("GradScaler: growth_factor must be above 1");
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1))
    throw InvalidArgument("GradScaler: backoff_factor must be between 0 and 1");
  if (options.growth_interval < 1)
    throw InvalidArgument("GradScaler: growth_interval must be 1 or more");
}

// The tensor that the kernel divides: the gradient, or the values of a sparse one.
at::Tensor values_of(at::Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  // Values of one index are added first, because their sum may overflow when they do not.
  if (!gradient.is_coalesced()) gradient = gradient.coalesce();
  return gradient._values();
}

using Kind = std::pair<at::Device, at::ScalarType>;
struct Before {
  bool operator()(const Kind& a, const Kind& b) const {
    return std::tuple(a.first.type(), a.first.index(), a.second) <
           std::tuple(b.first.type(), b.first.index(), b.second);
  }
};

// Copies to the CPU wait, because the host reads the result at once.
at::Tensor moved(const at::Tensor& one, at::Device device) {
  return one.to(device, /*non_blocking=*/!device.is_cpu());
}

at::Device first_device(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    if (!group.params().empty()) return group.params().front().device();
  return at::kCPU;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  check(options);
  scale_ = at::full({}, options.init_scale, at::kFloat);
  growth_tracker_ = at::zeros({}, at::kInt);
}

GradScaler::GradScaler(Communicator comm, const GradScalerOptions& options) : GradScaler(options) {
  comm_ = std::move(comm);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  // A tensor rather than a number, so that a float16 loss is promoted as in PyTorch, whose scale is
  // a tensor. A CPU tensor of one element goes to the device with the kernel's arguments.
  return loss * (scale_.is_cpu() ? scale_ : moved(scale_, loss.device()));
}

void GradScaler::move_to(at::Device device) {
  if (scale_.device() == device) return;
  // The scale comes from the CPU the first time, where the host has the values.
  const auto there = at::TensorOptions().device(device);
  scale_ = at::full({}, scale_.item<float>(), there.dtype(at::kFloat));
  growth_tracker_ = at::full({}, growth_tracker_.item<int>(), there.dtype(at::kInt));
}

GradScaler::Progress& GradScaler::unscale_inside(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  std::map<Kind, std::vector<at::Tensor>, Before> gradients;
  const auto take = [&gradients](at::Tensor& gradient) {
    if (!gradient.defined()) return;
    if (gradient.scalar_type() == at::kHalf) {
      throw InvalidArgument(
          "GradScaler: a gradient is float16 and cannot be unscaled; keep the parameters in "
          "float32 "
          "and compute under Autocast");
    }
    const at::Tensor values = values_of(gradient);
    gradients[{values.device(), values.scalar_type()}].push_back(values);
  };
  std::optional<std::vector<at::Tensor>> own;
  if (auto* pending = dynamic_cast<PendingGradients*>(&optimizer)) {
    pending->synchronize();
    own = pending->own_gradients();
  }
  if (own) {
    for (at::Tensor& gradient : *own) take(gradient);
  } else {
    for (auto& group : optimizer.param_groups()) {
      for (at::Tensor& parameter : group.params()) take(parameter.mutable_grad());
    }
  }
  // The other ranks may have gradients, so all ranks meet before a rank without any throws, on the
  // device of the optimizer's first parameter.
  const at::Device home = first_device(optimizer);
  move_to(home);
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros({1}, scale_.options());
  for (auto& [kind, tensors] : gradients) {
    if (kind.first == home) {
      at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, inverse);
      continue;
    }
    at::Tensor there = at::zeros({1}, at::TensorOptions(at::kFloat).device(kind.first));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, there, moved(inverse, kind.first));
    at::maximum_out(found, found, moved(there, home));
  }
  if (comm_) comm_->all_reduce(found, ReduceOp::kMax);
  if (gradients.empty()) {
    throw InvalidArgument(
        "GradScaler: no parameter of the optimizer has a gradient; call scale(loss).backward() "
        "first");
  }
  return progress_[&optimizer] = {.stepped = false, .found_inf = found};
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (const auto it = progress_.find(&optimizer); it != progress_.end()) {
    throw InvalidArgument(it->second.stepped
                              ? "GradScaler: unscale() after step(); call update() first"
                              : "GradScaler: unscale() was called for this optimizer already since "
                                "the last update()");
  }
  unscale_inside(optimizer);
}

GradScaler::Progress& GradScaler::begin_step(torch::optim::Optimizer& optimizer) {
  const auto it = progress_.find(&optimizer);
  if (it != progress_.end() && it->second.stepped) {
    throw InvalidArgument(
        "GradScaler: step() was called for this optimizer already since the last update()");
  }
  Progress& progress = it != progress_.end() ? it->second : unscale_inside(optimizer);
  progress.stepped = true;
  return progress;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  auto* const on_device = dynamic_cast<StepsOnDevice*>(&optimizer);
  if (!options_.enabled || on_device == nullptr || first_device(optimizer).is_cpu())
    return step(optimizer, [&optimizer] { optimizer.step(); });
  on_device->step_unless(begin_step(optimizer).found_inf);
  return true;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step) {
  if (!options_.enabled) {
    take_step();
    return true;
  }
  if (begin_step(optimizer).found_inf.item<float>() != 0) {
    if (auto* pending = dynamic_cast<PendingGradients*>(&optimizer)) pending->leave_out();
    return false;
  }
  take_step();
  return true;
}

void GradScaler::update(std::optional<double> scale) {
  if (!options_.enabled) return;
  if (scale) {
    if (!(*scale > 0) || !std::isfinite(*scale))
      throw InvalidArgument("GradScaler: the scale must be above 0 and finite");
    scale_.fill_(*scale);
    progress_.clear();
    return;
  }
  if (progress_.empty()) {
    throw InvalidArgument(
        "GradScaler: update() without unscale() or step() since the last; no gradients were looked "
        "at");
  }
  const at::NoGradGuard no_grad;
  at::Tensor found;
  for (const auto& [optimizer, progress] : progress_) {
    const at::Tensor one = moved(progress.found_inf, scale_.device());
    found = found.defined() ? at::maximum(found, one) : one;
  }
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  progress_.clear();
}

double GradScaler::current_scale() const {
  return options_.enabled ? scale_.item<float>() : 1.0;
}

GradScalerState GradScaler::state() const {
  return {.scale = scale_.item<float>(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = growth_tracker_.item<int>()};
}

void GradScaler::load_state(const GradScalerState& state) {
  GradScalerOptions options = options_;
  options.init_scale = state.scale;
  options.growth_factor = state.growth_factor;
  options.backoff_factor = state.backoff_factor;
  options.growth_interval = state.growth_interval;
  check(options);
  if (state.growth_tracker < 0 || state.growth_tracker >= state.growth_interval)
    throw InvalidArgument("GradScaler: growth_tracker must lie below growth_interval");
  options_ = options;
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
  progress_.clear();
}

void GradScaler::use(Communicator comm) {
  comm_ = std::move(comm);
  progress_.clear();
}

}  // namespace lockstep::inline v0::amp
