#include "lockstep/train/strategy.h"

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/steps_on_device.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/gradient_norm.h"

namespace lockstep {

torch::nn::Module& Strategy::model() const {
  if (!model_)
    throw InvalidArgument("strategy " + name() + ": it has no model yet; set_up() comes first");
  return *model_;
}

Communicator& Strategy::comm() {
  if (!comm_)
    throw InvalidArgument("strategy " + name() + ": it has no ranks yet; set_up() comes first");
  return *comm_;
}

void Strategy::set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm) {
  NamedTensors everything = parameters_of(*model);
  const NamedTensors buffers = to_named_tensors(model->named_buffers());
  everything.insert(everything.end(), buffers.begin(), buffers.end());
  check_same_on_all_ranks(comm, everything);
  broadcast_tensors(comm, everything);
  bind(std::move(model), std::move(comm));
}

void Strategy::bind(std::shared_ptr<torch::nn::Module> model, Communicator comm) {
  keep(std::move(model), std::move(comm));
}

void Strategy::set_up_undrawn(std::shared_ptr<torch::nn::Module> model, Communicator comm,
                              Initial initial) {  // NOLINT: kept by others
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_of(*model)) initial(name, 0, parameter.view(-1));
  set_up(std::move(model), std::move(comm));
}

void Strategy::share_buffers() {
  if (!divides_model()) lockstep::share_buffers(model(), comm());
}

std::unique_ptr<torch::optim::Optimizer> Strategy::make_optimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, const optim::Algorithm& algorithm) {
  return optim::make_fused(groups, algorithm);
}

void Strategy::backward(const at::Tensor& loss) {
  loss.backward();
  if (communicates_) synchronize();
}

bool Strategy::step(torch::optim::Optimizer& optimizer, const StrategyStep& options) {
  grad_norm_.reset();
  const auto take = [&] {
    if (auto* fused = dynamic_cast<optim::FusedStep*>(&optimizer)) {
      optim::StepOptions how;
      how.max_norm = options.max_norm;
      // On the host the norm is read in any case, and an error names the parameter.
      if (options.reads_norm_later && !comm().device().is_cpu() &&
          dynamic_cast<StepsOnDevice*>(&optimizer) != nullptr)
        how.on_non_finite = optim::NonFinite::kSkip;
      const optim::StepResult result = fused->step(how);
      if (result.norm.defined())
        grad_norm_ = DeviceScalar(result.norm);
      else if (result.grad_norm)
        grad_norm_ = *result.grad_norm;
      if (how.on_non_finite == optim::NonFinite::kSkip && grad_norm_) norms_.add(*grad_norm_, 1);
      return;
    }
    if (options.max_norm) {
      std::vector<at::Tensor> parameters;
      for (const auto& group : optimizer.param_groups())
        parameters.insert(parameters.end(), group.params().begin(), group.params().end());
      const bool on_host = parameters.empty() || parameters.front().is_cpu();
      grad_norm_ =
          on_host ? DeviceScalar(torch::nn::utils::clip_grad_norm_(parameters, *options.max_norm))
                  : DeviceScalar(optim::clip_grad_norm_(parameters, *options.max_norm));
    }
    optimizer.step();
  };
  if (options.scaler == nullptr) {
    take();
    return true;
  }
  const bool taken = options.scaler->step(optimizer, take);
  options.scaler->update();
  return taken;
}

StepMemory Strategy::planned_memory(const torch::optim::Optimizer& optimizer) const {
  StepMemory memory;
  for (const at::Tensor& parameter : model().parameters())
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
  for (const auto& group : optimizer.param_groups()) {
    const auto states = static_cast<int64_t>(optim::states_of(group.options()));
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad()) continue;
      memory.gradients += static_cast<int64_t>(parameter.nbytes());
      memory.state += states * static_cast<int64_t>(parameter.nbytes());
    }
  }
  return memory;
}

StepMemory Strategy::memory(torch::optim::Optimizer& optimizer) {
  StepMemory memory;
  for (const at::Tensor& parameter : model().parameters()) {
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
    if (parameter.grad().defined())
      memory.gradients += static_cast<int64_t>(parameter.grad().nbytes());
  }
  for (const auto& [name, tensor] : lockstep::optimizer_state(optimizer).tensors) {
    if (tensor.dim() > 0)
      memory.state += static_cast<int64_t>(tensor.nbytes());  // counts of steps have none
  }
  return memory;
}

int64_t Strategy::bytes_left(const std::function<std::shared_ptr<void>()>& forward) {
  const LiveBytes live;
  const auto kept = forward();
  return live.now();
}

int64_t Strategy::share_bytes(torch::optim::Optimizer& /*optimizer*/) {
  throw InvalidArgument("strategy " + name() + " has no shares");
}
void Strategy::write_share(torch::optim::Optimizer& /*optimizer*/, const at::Tensor& /*into*/) {
  throw InvalidArgument("strategy " + name() + " has no shares");
}
void Strategy::restore_share(torch::optim::Optimizer& /*optimizer*/, const at::Tensor& /*share*/) {
  throw InvalidArgument("strategy " + name() + " has no shares");
}

Checkpoint Strategy::divided_state() {
  throw InvalidArgument("strategy " + name() + " does not divide the model");
}
void Strategy::load_divided_state(const Checkpoint& /*checkpoint*/, const std::string& /*source*/,
                                  CheckpointParts /*parts*/) {
  throw InvalidArgument("strategy " + name() + " does not divide the model");
}
SlicedTensors Strategy::own_parameters() {
  throw InvalidArgument("strategy " + name() + " has whole parameters");
}
void Strategy::load_parameters(const SlicedTensors& /*values*/, const std::string& /*source*/) {
  throw InvalidArgument("strategy " + name() + " has whole parameters");
}
NamedTensors Strategy::gathered_parameters() {
  throw InvalidArgument("strategy " + name() + " does not divide the model");
}

void check_divided(const Strategy& strategy, const std::string& who, int64_t accumulation_steps,
                   bool float16) {
  if (!strategy.divides_model()) return;
  if (accumulation_steps > 1)
    throw InvalidArgument(who + ": gradient_accumulation_steps is " +
                          std::to_string(accumulation_steps) +
                          ", and the strategy divides the model, so that a step has one backward; "
                          "leave it at 1, and give larger batches in more micro_batches");
  if (float16)
    throw InvalidArgument(
        who +
        ": fp16 scales the loss, and the strategy divides the model, whose gradients are there "
        "before that; take bf16");
}

at::Tensor Strategy::random_states() const {
  return rng_state(comm_ ? comm_->device() : at::Device(at::kCPU)).unsqueeze(0);
}

void Strategy::set_random_states(const at::Tensor& all, const std::string& source) {
  if (all.size(0) == comm().size())
    set_rng_state(all[comm().rank()].contiguous(), comm().device(), source);
  else
    derive_rng_state(all[0].contiguous(), comm().rank(), comm().device(), source);
}

std::optional<double> Strategy::grad_norm() {
  check_steps();
  const at::Tensor known = at::zeros({2}, at::kDouble);  // whether it is, and the norm
  auto* const values = known.mutable_data_ptr<double>();
  if (grad_norm_) values[0] = 1, values[1] = *grad_norm_;
  comm().all_reduce(known, ReduceOp::kMax);
  return values[0] > 0 ? std::optional(values[1]) : std::nullopt;
}

void Strategy::check_steps() {
  if (comm().device().is_cpu()) return;
  const at::Tensor bad = at::zeros({1}, at::kDouble);
  if (!std::isfinite(norms_.value())) bad.fill_(1);
  norms_ = {};
  comm().all_reduce(bad, ReduceOp::kMax);
  if (bad.item<double>() > 0)
    throw Error(
        "the gradients' norm was not finite in a step since the last log, which was left out; "
        "lower the learning rate, or look for broken input");
}

Metrics update_figures(Strategy& strategy, double learning_rate) {
  Metrics figures{{"learning_rate", learning_rate}};
  if (const auto norm = strategy.grad_norm()) figures.emplace_back("grad_norm", *norm);
  return figures;
}

int64_t batches_per_step(const Strategy& strategy, const Communicator& comm) {
  const int64_t logical = strategy.logical_ranks();
  if (logical == 0) return 1;
  if (logical % comm.size() != 0)
    throw InvalidArgument("strategy " + strategy.name() + ": " + std::to_string(comm.size()) +
                          " ranks cannot share it equally; start a power of two up to " +
                          std::to_string(logical));
  return logical / comm.size();
}

std::unique_ptr<data::Sampler> make_sampler(const Strategy& strategy, const Communicator& comm,
                                            int64_t size, int64_t batch_size, int64_t seed) {
  const data::DistributedSamplerOptions options{.seed = seed};
  if (strategy.logical_ranks() == 0)
    return std::make_unique<data::DistributedSampler>(size, strategy.data_ranks(comm), options);
  const int64_t own = batches_per_step(strategy, comm);
  return std::make_unique<data::LogicalSampler>(size, strategy.logical_ranks(), comm.rank() * own,
                                                own, batch_size, options);
}

SlicedTensors Strategy::optimizer_state(torch::optim::Optimizer& optimizer) {
  return comm().rank() == 0 ? SlicedTensors(lockstep::optimizer_state(optimizer)) : SlicedTensors{};
}

void Strategy::load_optimizer_state(torch::optim::Optimizer& optimizer, const SlicedTensors& state,
                                    const std::string& source) {
  set_optimizer_state(optimizer, state.whole(), source);
}

}  // namespace lockstep
