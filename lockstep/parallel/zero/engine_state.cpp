#include "lockstep/parallel/zero/engine_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/loss_share.h"
#include "lockstep/optim/configured_optimizer.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/learning_rate.h"

namespace lockstep::inline v0::zero {
namespace {

ZeroOptions options_of(const ZeroConfig& config) {
  constexpr int64_t kFloat32 = 4;
  const int64_t most = config.reduce_bucket_size * kFloat32;
  const flat::BucketSizes sizes;
  return {
      .stage = config.stage,
      .accumulate = config.stage > 1,
      .bucket_sizes = {.first = std::min(sizes.first, most), .rest = std::min(sizes.rest, most)},
      .overlap = config.overlap_comm,
      .state_directory = config.state_directory,
      .ignore_unused = config.ignore_unused_parameters};
}

std::unique_ptr<ZeroOptimizer> make_optimizer(const torch::nn::Module& module, Communicator& comm,
                                              const ZeroConfig& config,
                                              const optim::OptimizerSpec& spec) {
  const auto groups = optim::parameter_groups(module, spec);
  const optim::DecayGroups split = optim::split_by_decay(module, spec.no_decay);
  std::vector<std::string> names;
  for (const NamedTensors* named : {&split.decay, &split.no_decay})
    for (const auto& entry : *named) names.push_back(entry.first);
  // A float32 model computes under autocast, and its parameters are the master weights.
  ZeroOptions zero = options_of(config);
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& one : group.params())
      zero.master_weights |= config.precision != optim::Precision::kFloat32 &&
                             (one.scalar_type() == at::kBFloat16 || one.scalar_type() == at::kHalf);
  }
  return std::make_unique<ZeroOptimizer>(comm, groups, names, optim::algorithm_of(spec), zero);
}

// Ranks that train differently would otherwise not notice it.
void check_same_config(Communicator& comm, const ZeroConfig& config) {
  const auto own = static_cast<int64_t>(fingerprint(to_json(config)));
  const at::Tensor all = comm.all_gather(at::full({1}, own, at::kLong));
  const int64_t* hashes = all.const_data_ptr<int64_t>();
  for (int r = 1; r < comm.size(); ++r) {
    if (hashes[r] == hashes[0]) continue;
    throw Mismatch("zero::initialize: rank " + std::to_string(r) +
                   " has another configuration than rank 0; read the same file on all ranks");
  }
}

// The tensors that ranks must share besides the trained parameters.
NamedTensors frozen_and_buffers(const torch::nn::Module& module) {
  NamedTensors result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.emplace_back(item.key(), item.value());
  }
  for (const auto& [name, tensor] : to_named_tensors(module.named_buffers()))
    result.emplace_back(name, tensor);
  return result;
}

}  // namespace

EngineState::EngineState(torch::nn::Module& module, Communicator comm, const ZeroConfig& config,
                         const EngineOptions& options)
    : module_(module),
      comm_(std::move(comm)),
      config_(resolved(config, comm_.size())),
      spec_(spec_of(config_)),
      buffers_(to_named_tensors(module.named_buffers())),
      wrapped_("zero::Engine", parameters_of(module)) {
  wrapped_.check_trained();
  check_same_config(comm_, config_);
  const NamedTensors others = frozen_and_buffers(module);
  check_same_on_all_ranks(comm_, others);
  broadcast_tensors(comm_, others);
  if (options.no_decay) spec_.optimizer.no_decay = *options.no_decay;
  optimizer_ = make_optimizer(module, comm_, config_, spec_.optimizer);
  if (spec_.precision == optim::Precision::kFloat16) scaler_.emplace(config_.loss_scale);
  follow_schedule();
}

void EngineState::before_forward(const torch::nn::Module& module) {
  if (at::GradMode::is_enabled()) wrapped_.check(module);
  const bool step_began = backward_done_ || progress_.micro_steps % spec_.accumulation != 0;
  if (!module.is_training() || step_began || buffers_.empty() || comm_.size() == 1) return;
  if (at::GradMode::is_enabled()) broadcast_tensors(comm_, buffers_);
}

amp::Autocast EngineState::autocast() const {
  const at::DeviceType device = comm_.device().type();
  if (spec_.precision == optim::Precision::kFloat32)
    return amp::Autocast(amp::current_autocast(device));
  return amp::Autocast(device,
                       spec_.precision == optim::Precision::kBFloat16 ? at::kBFloat16 : at::kHalf);
}

bool EngineState::at_boundary() const {
  return (progress_.micro_steps + 1) % spec_.accumulation == 0;
}

void EngineState::backward(const at::Tensor& loss, std::optional<double> share) {
  if (backward_done_) {
    throw InvalidArgument(
        "zero::Engine: backward() twice without step(); add the losses up, or call step() after "
        "each backward() as DeepSpeed does");
  }
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw InvalidArgument(
        "zero::Engine: backward() takes a loss of one element that depends on the parameters");
  }
  at::Tensor scaled = loss;
  amp::widen(scaled);
  if (share) check_share("zero::Engine::backward", *share);
  scaled = weighed_loss(scaled, share, comm_.size(), spec_.accumulation);
  if (scaler_) scaled = scaled * scaler_->scale();
  if (at_boundary() || config_.stage > 1) {
    scaled.backward();
  } else {
    const auto quiet = optimizer_->no_sync();
    scaled.backward();
  }
  backward_done_ = true;
}

StepReport EngineState::step() {
  if (!backward_done_) throw InvalidArgument("zero::Engine: step() without a backward() before it");
  const bool boundary = at_boundary();
  backward_done_ = false;
  ++progress_.micro_steps;
  return boundary ? step_optimizer() : StepReport{};
}

StepReport EngineState::step_optimizer() {
  optim::StepOptions options;
  if (spec_.max_norm > 0) options.max_norm = spec_.max_norm;
  if (scaler_) options.grad_scale = at::full({}, scaler_->scale(), at::kDouble);
  const optim::StepResult result = optimizer_->step(options);
  ++progress_.global_steps;
  if (result.skipped) ++progress_.skipped_steps;
  if (scaler_) scaler_->update(result.skipped);
  follow_schedule();
  return {.boundary = true, .skipped = result.skipped, .grad_norm = result.grad_norm};
}

void EngineState::follow_schedule() {
  if (!spec_.schedule.deepspeed) return;  // the caller's, where it sets one
  const int64_t taken = progress_.global_steps - progress_.skipped_steps;
  optim::set_learning_rate(*optimizer_, optim::rates_of(spec_, 0, 0)(taken));
}

double EngineState::learning_rate() const {
  return optimizer_->param_groups().front().options().get_lr();
}

double EngineState::loss_scale() const {
  return scaler_ ? scaler_->scale() : 1;
}

}  // namespace lockstep::inline v0::zero
