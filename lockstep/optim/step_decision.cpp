#include "lockstep/optim/step_decision.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/optim/gradient_norm.h"

namespace lockstep::inline v0::optim {
namespace {

void check_one(const at::Tensor& tensor, const char* name, const char* who) {
  if (tensor.defined() && (tensor.numel() != 1 || !at::isFloatingType(tensor.scalar_type())))
    throw InvalidArgument(std::string(who) + ": " + name + " must be one floating-point element");
}

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu();
}

bool skips_non_finite(const StepOptions& options) {
  return options.found_inf.defined() || options.grad_scale.defined() ||
         options.on_non_finite == NonFinite::kSkip;
}

}  // namespace

void check_step_options(const StepOptions& options, const char* who) {
  if (options.max_norm) check_max_norm(who, *options.max_norm);
  check_one(options.grad_scale, "grad_scale", who);
  check_one(options.found_inf, "found_inf", who);
}

bool device_may_decide(const StepOptions& options) {
  return on_device(options.found_inf) || on_device(options.grad_scale) ||
         (options.max_norm && options.on_non_finite == NonFinite::kSkip);
}

StepDecision decide_step(const StepOptions& options, const char* who, const HostNorm& norm,
                         const std::function<std::string()>& first_not_finite, StepResult* result) {
  const double scale = options.grad_scale.defined() ? options.grad_scale.item<double>() : 1;
  if (!(scale > 0)) throw InvalidArgument(std::string(who) + ": grad_scale must be above 0");
  const bool found = options.found_inf.defined();
  if (found && options.found_inf.item<double>() != 0) return {.skipped = true};
  if (!options.max_norm && (found || !options.grad_scale.defined())) return {.divisor = scale};
  const double unscaled = norm() / scale;
  result->grad_norm = unscaled;
  if (!std::isfinite(unscaled)) {
    if (skips_non_finite(options)) return {.skipped = true};
    throw Error(std::string(who) +
                ": the gradients' norm is not finite (first: " + first_not_finite() +
                "); the step was not taken. Lower the learning rate, look for a division by zero, "
                "or skip such steps (NonFinite::kSkip)");
  }
  if (!options.max_norm) return {.divisor = scale};
  return {.divisor = scale * std::max(1.0, (unscaled + kNormEpsilon) / *options.max_norm)};
}

StepDecision decide_step_on_device(const StepOptions& options, at::Device device,
                                   const DeviceNorm& norm, StepResult* result) {
  const auto here = at::TensorOptions(at::kDouble).device(device);
  const auto bring = [&](const at::Tensor& one) {
    return one.is_cpu() ? at::full({}, one.item<double>(), here)
                        : one.detach().reshape({}).to(here, /*non_blocking=*/true);
  };
  at::Tensor divisor = options.grad_scale.defined() ? bring(options.grad_scale) : at::Tensor();
  at::Tensor found = options.found_inf.defined() ? bring(options.found_inf).ne(0) : at::Tensor();
  const auto find = [&](const at::Tensor& wrong) {
    found = found.defined() ? found.logical_or(wrong) : wrong;
  };
  if (divisor.defined()) find(divisor.gt(0).logical_not());
  if (options.max_norm || !options.found_inf.defined()) {
    const at::Tensor unscaled = divisor.defined() ? norm() / divisor : norm();
    result->norm = unscaled;
    find(unscaled.isfinite().logical_not());
    if (options.max_norm) {
      const at::Tensor excess = ((unscaled + kNormEpsilon) / *options.max_norm).clamp_min(1);
      divisor = divisor.defined() ? divisor * excess : excess;
    }
  }
  StepDecision decision{.found_inf = found.to(at::kFloat)};
  if (divisor.defined()) decision.device_divisor = divisor.to(at::kFloat);
  return decision;
}

}  // namespace lockstep::inline v0::optim
