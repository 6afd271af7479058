#include "lockstep/parallel/zero/internal/zero_update.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <tuple>

#include "lockstep/core/errors.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/muon.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

// A range of the part whose parameters have taken equally many steps.
struct ZeroStretch {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t steps = 0;
};

// Padding joins the stretch before it: it is zero and stays so.
std::vector<ZeroStretch> stretches_of(const ZeroBucket& bucket,
                                      const std::vector<ZeroParameter>& parameters) {
  std::vector<ZeroStretch> result;
  for (const ZeroSlot& slot : bucket.slots) {
    if (slot.own.empty()) continue;
    const int64_t steps = parameters[slot.parameter].steps;
    if (!result.empty() && result.back().steps == steps) continue;
    if (!result.empty()) result.back().end = slot.own.begin;
    result.push_back({result.empty() ? 0 : slot.own.begin, bucket.part, steps});
  }
  return result;
}

// The arguments of a kernel, from the stretches that agree in having state or not.
struct ZeroLaunch {
  std::vector<at::Tensor> weights, gradients, steps;
  std::vector<at::Tensor> states[3];
  std::optional<at::Tensor> divisor, found_inf;
};

template <typename Options>
void launch_zero_adam(ZeroLaunch& launch, const Options& options, const auto& kernel) {
  kernel(launch.weights, launch.gradients, launch.states[0], launch.states[1], launch.states[2],
         launch.steps, options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
         options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false,
         launch.divisor, launch.found_inf);
}

void launch_kernel(ZeroLaunch& launch, const torch::optim::OptimizerOptions& base, bool first) {
  if (launch.weights.empty()) return;
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&base)) {
    launch_zero_adam(launch, *adamw, [](const auto&... args) { at::_fused_adamw_(args...); });
  } else if (const auto* adam = dynamic_cast<const AdamOptions*>(&base)) {
    launch_zero_adam(launch, *adam, [](const auto&... args) { at::_fused_adam_(args...); });
  } else {
    const auto& sgd = static_cast<const SGDOptions&>(base);
    at::_fused_sgd_(launch.weights, launch.gradients, launch.states[0], sgd.weight_decay(),
                    sgd.momentum(), sgd.lr(), sgd.dampening(), sgd.nesterov(), /*maximize=*/false,
                    first, launch.divisor, launch.found_inf);
  }
}

void update_by_kernel(ZeroBucket& bucket, const at::Tensor& gradient,
                      const std::vector<ZeroParameter>& parameters,
                      const optim::StepDecision& decision, const at::Tensor& left_out,
                      const torch::optim::OptimizerOptions& options) {
  const size_t states = optim::states_of(options);
  const auto scalar = bucket.own_parameters.options().dtype(at::kFloat);
  const std::vector<ZeroStretch> stretches = stretches_of(bucket, parameters);
  for (const bool first : {false, true}) {
    ZeroLaunch launch;
    if (decision.device_divisor.defined())
      launch.divisor = decision.device_divisor;
    else if (decision.divisor != 1)
      launch.divisor = at::full({}, decision.divisor, scalar);
    if (decision.found_inf.defined()) launch.found_inf = decision.found_inf;
    for (const auto& [begin, end, steps] : stretches) {
      if ((steps == 0) != first) continue;
      const auto part = [b = begin, n = end - begin](const at::Tensor& t) {
        return t.narrow(0, b, n);
      };
      launch.weights.push_back(part(bucket.own_values()));
      launch.gradients.push_back(part(gradient));
      const at::Tensor step = at::full({}, static_cast<double>(steps + 1), scalar);
      launch.steps.push_back(left_out.defined() ? step - left_out : step);
      for (size_t which = 0; which < states; ++which)
        launch.states[which].push_back(part(bucket.state(which)));
    }
    launch_kernel(launch, options, first);
  }
}

// Each matrix belongs to one rank as a whole.
void update_matrices(ZeroBucket& bucket, const at::Tensor& gradient,
                     const std::vector<ZeroParameter>& parameters, double divisor,
                     const optim::MuonOptions& options) {
  std::optional<at::Tensor> by;
  if (divisor != 1) by = at::full({}, divisor, bucket.own_parameters.options().dtype(at::kFloat));
  for (const ZeroSlot& slot : bucket.slots) {
    if (slot.own.empty()) continue;
    const at::Tensor& like = parameters[slot.parameter].tensor;
    const auto shaped = [&](const at::Tensor& part) {
      return part.as_strided(like.sizes(), like.strides(), part.storage_offset() + slot.own.begin);
    };
    optim::muon_update(shaped(bucket.own_values()), shaped(gradient), shaped(bucket.state(0)),
                       options, by);
  }
}

// Values that others have written into the parameters take effect; without such a write, the
// master's additional bits do.
void follow_parameters(ZeroBucket& bucket) {
  const at::Tensor rounded = bucket.own_master.to(bucket.own_parameters.scalar_type());
  // On a device the comparison would cost more than it saves.
  if (rounded.is_cpu() && at::equal(rounded, bucket.own_parameters)) return;
  bucket.own_master.copy_(
      at::where(rounded.eq(bucket.own_parameters), bucket.own_master, bucket.own_parameters));
}

// A graph would repeat the learning rate and the step that the host has now.
void refuse_capture(at::Device device) {
  if (device.is_cpu() || !device::anybody_captures() ||
      device::capture_of(device::current_stream(device)) == nullptr)
    return;
  throw InvalidArgument(
      "ZeroOptimizer: its step cannot be captured in a graph; FusedAdamW, FusedAdam and FusedSGD "
      "under DistributedDataParallel can");
}

}  // namespace

void update_part(ZeroBucket& bucket, std::vector<ZeroParameter>& parameters,
                 const optim::StepDecision& decision, const at::Tensor& left_out,
                 const torch::optim::OptimizerOptions& options) {
  refuse_capture(bucket.own_parameters.device());
  // Also where all of this rank's part is padding: memory must be as planned.
  if (const size_t count = optim::states_of(options); count > 0) bucket.state(count - 1);
  const bool master = bucket.own_master.defined();
  if (master) follow_parameters(bucket);
  const at::Tensor gradient = bucket.own_gradient.to(bucket.own_values().scalar_type());
  if (const auto* muon = dynamic_cast<const optim::MuonOptions*>(&options))
    update_matrices(bucket, gradient, parameters, decision.divisor, *muon);
  else
    update_by_kernel(bucket, gradient, parameters, decision, left_out, options);
  if (master) bucket.own_parameters.copy_(bucket.own_master);
  for (const ZeroSlot& slot : bucket.slots) {
    ++parameters[slot.parameter].steps;
    // Like an in-place change: autograd then notices a graph that saved the old values.
    parameters[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep::inline v0::internal
