#include "lockstep/amp/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/comm/types.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/pending_gradients.h"

namespace lockstep::amp {
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

// What the kernel divides: the gradients, or the values that a sparse one has.
at::Tensor values_of(at::Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  // Values at one place are added first: their sum may overflow where they do not.
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
  // As a tensor, not a number: a float16 loss is promoted as in PyTorch, where the scale is one.
  return loss * scale_.to(loss.device());
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
  // The other ranks may have gradients: they are met before a rank without any complains.
  float found = 0;
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  for (auto& [kind, tensors] : gradients) {
    at::Tensor found_inf = at::zeros({1}, at::TensorOptions(at::kFloat).device(kind.first));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_inf, inverse.to(kind.first));
    found = std::max(found, found_inf.item<float>());
  }
  if (comm_) {
    const at::Tensor any = at::full({1}, found, at::kFloat);
    comm_->all_reduce(any, ReduceOp::kMax);
    found = any.item<float>();
  }
  if (gradients.empty()) {
    throw InvalidArgument(
        "GradScaler: no parameter of the optimizer has a gradient; call scale(loss).backward() "
        "first");
  }
  return progress_[&optimizer] = {.stepped = false, .found_inf = found > 0};
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

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(optimizer, [&optimizer] { optimizer.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step) {
  if (!options_.enabled) {
    take_step();
    return true;
  }
  const auto it = progress_.find(&optimizer);
  if (it != progress_.end() && it->second.stepped) {
    throw InvalidArgument(
        "GradScaler: step() was called for this optimizer already since the last update()");
  }
  Progress& progress = it != progress_.end() ? it->second : unscale_inside(optimizer);
  progress.stepped = true;
  if (progress.found_inf) {
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
        "GradScaler: update() without unscale() or step() since the last; nobody looked at the "
        "gradients");
  }
  bool found = false;
  for (const auto& [optimizer, progress] : progress_) found |= progress.found_inf;
  at::_amp_update_scale_(scale_, growth_tracker_, at::full({1}, found ? 1.0f : 0.0f, at::kFloat),
                         options_.growth_factor, options_.backoff_factor, options_.growth_interval);
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

}  // namespace lockstep::amp
