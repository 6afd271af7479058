#include "lockstep/train/strategy_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/steps_on_device.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Which rank writes what of a model that all have: parameters where there is least so far, and
// buffers, which may differ from rank to rank, on rank 0.
NamedTensors dealt(const NamedTensors& tensors, const torch::nn::Module& model, int rank,
                   int ranks) {
  std::set<std::string> parameters;
  for (const auto& [name, tensor] : parameters_of(model)) parameters.insert(name);
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  NamedTensors own;
  for (const auto& entry : tensors) {
    const bool divided = parameters.count(entry.first) != 0;
    const auto to = divided ? std::min_element(load.begin(), load.end()) : load.begin();
    *to += static_cast<int64_t>(entry.second.nbytes());
    if (to - load.begin() == rank) own.push_back(entry);
  }
  return own;
}

}  // namespace

const std::string& StrategyPart::name() const {
  return strategy_->name();
}
torch::nn::Module& StrategyPart::model() const {
  return *shared_model();
}
const std::shared_ptr<torch::nn::Module>& StrategyPart::shared_model() const {
  return strategy_->model();
}
Communicator& StrategyPart::comm() const {
  return strategy_->comm();
}
StrategyTraits& StrategyPart::traits() const {
  return strategy_->traits_;
}

void StrategyGradients::compute(const std::function<at::Tensor()>& loss, amp::GradScaler* scaler) {
  const at::Tensor found = loss();
  backward(scaler != nullptr ? scaler->scale(found) : found);
}

void StrategyGradients::backward(const at::Tensor& loss) {
  loss.backward();
  if (communicates_) synchronize();
}

StepTrace StrategyGradients::tried(const std::function<TriedLoss()>& loss, bool after_another) {
  StepRecorder recorder(*this);
  std::shared_ptr<void> kept;
  if (after_another) {
    communicate(false);
    compute([&] {
      recorder.before_forward();
      TriedLoss found = loss();
      recorder.after_forward();
      kept = std::move(found.kept);
      return std::move(found.loss);
    });
    kept.reset();
    communicate(true);
  }
  compute_in_vain(
      [&] {
        recorder.before_forward();
        TriedLoss found = loss();
        recorder.after_forward();
        kept = std::move(found.kept);
        return std::move(found.loss);
      },
      [&] { recorder.after_gradients(); });
  kept.reset();
  return recorder.trace();
}

void StrategyGradients::compute_in_vain(const std::function<at::Tensor()>& loss,
                                        const std::function<void()>& done) {
  compute(loss);
  done();
  model().zero_grad();
}

std::vector<at::Tensor> StrategyGradients::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model().parameters()) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

at::Tensor StrategyGradients::random_states() const {
  return rng_state(comm().device()).unsqueeze(0);
}

void StrategyGradients::set_random_states(const at::Tensor& all, const std::string& source) {
  if (all.size(0) == comm().size())
    set_rng_state(all[comm().rank()].contiguous(), comm().device(), source);
  else
    derive_rng_state(all[0].contiguous(), comm().rank(), comm().device(), source);
}

std::unique_ptr<torch::optim::Optimizer> StrategyState::make_optimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, const optim::Algorithm& algorithm) {
  return optim::make_fused(groups, algorithm);
}

bool StrategyState::step(torch::optim::Optimizer& optimizer, const StrategyStep& options) {
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

std::optional<double> StrategyState::own_grad_norm() const {
  return grad_norm_ ? std::optional(grad_norm_->value()) : std::nullopt;
}

void StrategyState::set_grad_norm(std::optional<double> norm) {
  grad_norm_ = norm ? std::optional<DeviceScalar>(*norm) : std::nullopt;
}

std::optional<double> StrategyState::grad_norm() {
  check_steps();
  const at::Tensor known = at::zeros({2}, at::kDouble);  // whether it is, and the norm
  auto* const values = known.mutable_data_ptr<double>();
  if (grad_norm_) values[0] = 1, values[1] = *grad_norm_;
  comm().all_reduce(known, ReduceOp::kMax);
  return values[0] > 0 ? std::optional(values[1]) : std::nullopt;
}

void StrategyState::check_steps() {
  if (comm().device().is_cpu()) return;
  const at::Tensor bad = at::zeros({1}, at::kDouble);
  if (!std::isfinite(norms_.value())) bad.fill_(1);
  norms_ = {};
  comm().all_reduce(bad, ReduceOp::kMax);
  if (bad.item<double>() > 0)
    throw Error(
        "the gradients' norm was not finite in a step since the last log or checkpoint, which was "
        "left out; lower the learning rate, or look for broken input");
}

Checkpoint StrategyState::share(torch::optim::Optimizer& optimizer) {
  Checkpoint checkpoint;
  checkpoint.optimizer = optimizer_state(optimizer);
  if (const auto names = parameter_names(model(), optimizer))
    checkpoint.optimizer = by_name(std::move(checkpoint.optimizer), *names);
  checkpoint.model.metadata = {{"format", "pt"}};
  share_parameters(checkpoint);
  return checkpoint;
}

void StrategyState::load(torch::optim::Optimizer* optimizer, const Checkpoint& checkpoint,
                         const std::string& source, CheckpointParts parts) {
  load_parameters(checkpoint, source + "/model.safetensors");
  if (parts == CheckpointParts::kModelAndConfig) return;
  const std::string file = source + "/optimizer.safetensors";
  SlicedTensors state = checkpoint.optimizer;
  if (const auto names = parameter_names(model(), *optimizer))
    state = by_position(std::move(state), *names, file);
  load_optimizer_state(*optimizer, state, file);
}

SlicedTensors StrategyState::optimizer_state(torch::optim::Optimizer& optimizer) {
  return comm().rank() == 0 ? SlicedTensors(lockstep::optimizer_state(optimizer)) : SlicedTensors{};
}

void StrategyState::load_optimizer_state(torch::optim::Optimizer& optimizer,
                                         const SlicedTensors& state, const std::string& source) {
  set_optimizer_state(optimizer, state.whole(), source);
}

void StrategyState::share_parameters(Checkpoint& checkpoint) {
  const NamedTensors tensors = module_state(model());
  const bool divided = traits().divides_state && bytes_of(tensors) >= kDividedModelBytes;
  checkpoint.model.tensors = dealt(tensors, model(), comm().rank(), divided ? comm().size() : 1);
}

void StrategyState::load_parameters(const Checkpoint& checkpoint, const std::string& source) {
  const auto whole = strategy().placement().whole_parameters();
  // Another rank may still compute with the parameters, which may be one memory.
  comm().barrier();
  set_module_state(model(), checkpoint.model.tensors, source);
}

NamedTensors StrategyState::gathered_parameters() {
  return comm().rank() == 0 ? module_state(model()) : NamedTensors{};
}

StepMemory StrategyState::planned_memory(const torch::optim::Optimizer& optimizer) const {
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

StepMemory StrategyState::memory(torch::optim::Optimizer& optimizer) {
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

void StrategyPlacement::set_up(const Initial& initial) {
  if (initial) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters_of(model()))
      initial(name, 0, parameter.view(-1));
  }
  NamedTensors everything = parameters_of(model());
  const NamedTensors buffers = to_named_tensors(model().named_buffers());
  everything.insert(everything.end(), buffers.begin(), buffers.end());
  check_same_on_all_ranks(comm(), everything);
  broadcast_tensors(comm(), everything);
}

void StrategyPlacement::share_buffers() {
  if (!traits().divides_model) lockstep::share_buffers(model(), comm());
}

std::shared_ptr<void> StrategyPlacement::as_saved() {
  share_buffers();
  return traits().has_parts ? nullptr : whole_parameters();
}

}  // namespace lockstep::inline v0
