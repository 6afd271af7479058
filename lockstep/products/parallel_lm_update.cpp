// The step of the optimizer, over all ranks.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>

#include "lockstep/core/errors.h"
#include "lockstep/model/lm_experts.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/parallel/tensor/tensor_parallel_lm.h"
#include "lockstep/products/internal/state.h"

namespace lockstep {
namespace {

constexpr double kSmall = 1e-6;  // clip_grad_norm_'s

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::unique_ptr<torch::optim::OptimizerOptions> options_of(const optim::Algorithm& algorithm,
                                                           bool decays) {
  return std::visit(
      [&](auto options) -> std::unique_ptr<torch::optim::OptimizerOptions> {
        if (!decays) options.weight_decay(0);
        return std::make_unique<decltype(options)>(options);
      },
      algorithm);
}

// Which group a parameter is in.
std::map<std::string, size_t> groups_by_name(const optim::Algorithm& algorithm,
                                             const std::vector<LmParameterGroup>& groups,
                                             const LmConfig& config) {
  std::set<std::string> known;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) known.insert(name);
  const auto is_of_kind = [&](const torch::optim::OptimizerOptions& options) {
    return std::visit([&](const auto& own) { return typeid(own) == typeid(options); }, algorithm);
  };
  std::map<std::string, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto& options = groups[group].options;
    if (!options || !is_of_kind(*options))
      throw InvalidArgument("ParallelLm: the options of group " + std::to_string(group) +
                            " are not of the algorithm's class; give all groups options of it");
    for (const std::string& name : groups[group].names) {
      if (!known.contains(name))
        throw InvalidArgument("ParallelLm: group " + std::to_string(group) + " has '" + name +
                              "', which the model has not; name its parameters");
      if (!group_of.emplace(name, group).second)
        throw InvalidArgument("ParallelLm: '" + name + "' is in two groups; leave it in one");
    }
  }
  return group_of;
}

}  // namespace

// Experts have gradients of tokens of every rank along expert already. What other ranks count as well, ties' second
// places, heads that parts share and what is whole on all parts, is counted there.
std::vector<LmParameterClass> ParallelLm::State::make_classes() const {
  enum class Kind : uint8_t { kDivided, kWhole, kCopy };
  const bool first_part = mesh.place("tensor") == 0;
  std::vector<LmParameterClass> all;
  for (const bool experts : {false, true}) {
    for (const Kind kind : {Kind::kDivided, Kind::kWhole, Kind::kCopy}) {
      std::vector<std::string> axes{"data", "context"};
      if (!experts) axes.emplace_back("expert");
      LmParameterClass one{
          .parts = {},
          .averaged = mesh.over(axes),
          .counts = kind == Kind::kDivided || (kind == Kind::kWhole && first_part)};
      // Each rank of the averaging has all gradients, or its own part of them.
      if (how.zero == 0) one.counts = one.counts && one.averaged.rank() == 0;
      for (const LmParameterPart& part : own) {
        const Kind is = part.copy || part.slice.repeated ? Kind::kCopy
                        : part.slice.whole()             ? Kind::kWhole
                                                         : Kind::kDivided;
        if (is == kind && is_expert_parameter(part.name) == experts && part.tensor.requires_grad())
          one.parts.push_back(&part);
      }
      if (!one.parts.empty()) all.push_back(std::move(one));
    }
  }
  return all;
}

// Biases and norms are the parameters of one dimension.
void ParallelLm::make_optimizer(const optim::Algorithm& algorithm) {
  std::vector<LmParameterGroup> groups{{{}, options_of(algorithm, /*decays=*/true)},
                                       {{}, options_of(algorithm, /*decays=*/false)}};
  for (const auto& [name, shape] : lm_parameter_shapes(state_->config))
    groups[shape.size() > 1 ? 0 : 1].names.push_back(name);
  make_optimizer(algorithm, groups);
}

void ParallelLm::make_optimizer(const optim::Algorithm& algorithm,
                                const std::vector<LmParameterGroup>& groups) {
  State& state = *state_;
  if (state.has_optimizer)
    throw InvalidArgument("ParallelLm: it has an optimizer; make_optimizer() is called once");
  const std::map<std::string, size_t> group_of = groups_by_name(algorithm, groups, state.config);
  for (LmParameterClass& one : state.classes) {
    std::vector<std::string> names;
    Groups own;
    for (size_t group = 0; group < groups.size(); ++group) {
      std::vector<at::Tensor> tensors;
      std::vector<std::string> of_group;
      for (const LmParameterPart* part : one.parts) {
        const auto found = group_of.find(part->name);
        if (found == group_of.end() || found->second != group) continue;
        tensors.push_back(part->tensor);
        of_group.push_back(part->name);
      }
      names.insert(names.end(), of_group.begin(), of_group.end());
      one.names.push_back(std::move(of_group));
      // Empty ones, too: groups have the same numbers on all stages.
      own.emplace_back(std::move(tensors), groups[group].options->clone());
    }
    if (names.empty()) continue;
    ZeroOptions options{.stage = state.how.zero, .overlap = false};
    // A device has memory of its own, and divides a stage's layers.
    if (options.stage == 3 && !state.comm.device().is_cpu()) options.units.model = state.lm.ptr();
    one.optimizer = std::make_unique<ZeroOptimizer>(one.averaged, own, names, algorithm, options);
  }
  for (const LmParameterPart& part : state.own)
    if (!group_of.contains(part.name)) state.untrained.push_back(part.tensor);
  state.has_optimizer = true;
}

optim::StepResult ParallelLm::update(const UpdateOptions& options) {
  State& state = *state_;
  if (!state.has_optimizer)
    throw InvalidArgument("ParallelLm: make_optimizer() comes before update()");
  if (options.max_norm && !(*options.max_norm > 0))
    throw InvalidArgument("ParallelLm: max_norm is " + std::to_string(*options.max_norm) +
                          "; it must be above 0");
  optim::StepOptions how;
  optim::StepResult result;
  if (options.max_norm || options.loss_scale) {
    const at::Device device = state.comm.device();
    const at::Tensor sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(device));
    synchronize();
    for (LmParameterClass& one : state.classes) {
      if (one.counts && one.optimizer)
        sum.add_(optim::sum_of_squares_on(device, *one.optimizer->own_gradients()));
    }
    state.comm.iall_reduce(sum, ReduceOp::kSum, call_note("ParallelLm: gradient norm")).wait();
    const double scale = options.loss_scale.value_or(1);
    const double norm = std::sqrt(sum.item<double>()) / scale;
    const bool finite = std::isfinite(norm);
    if (!finite && !options.loss_scale)
      throw Error("ParallelLm: the norm of the gradients is " + std::to_string(norm) +
                  "; nothing was updated");
    double divisor = scale;
    if (finite && options.max_norm) divisor *= std::max(1.0, (norm + kSmall) / *options.max_norm);
    // The kernels divide by a float32, which float64 is too good for.
    const bool in_place = state.options.dtype == at::kDouble && finite && divisor != 1;
    if (in_place) {
      const at::NoGradGuard no_grad;
      for (LmParameterClass& one : state.classes) {
        if (!one.optimizer) continue;
        const auto gradients = one.optimizer->own_gradients();
        for (const at::Tensor& gradient : *gradients) gradient.div_(divisor);
      }
    }
    how.grad_scale = at::full({1}, in_place ? 1.0 : divisor, at::kFloat);
    how.found_inf = at::full({1}, finite ? 0.0 : 1.0, at::kFloat);
    result.grad_norm = norm;
    result.skipped = !finite;
  }
  for (LmParameterClass& one : state.classes)
    if (one.optimizer) result.skipped = one.optimizer->step(how).skipped;
  for (const at::Tensor& parameter : state.untrained) parameter.mutable_grad().reset();
  return result;
}

void ParallelLm::set_learning_rate(double rate) {
  for (LmParameterClass& one : state_->classes) {
    if (!one.optimizer) continue;
    for (auto& group : one.optimizer->param_groups()) group.options().set_lr(rate);
  }
}

std::vector<at::Tensor> ParallelLm::synchronize() {
  if (!state_->has_optimizer)
    throw InvalidArgument("ParallelLm: make_optimizer() comes before synchronize()");
  std::vector<at::Tensor> own;
  for (LmParameterClass& one : state_->classes) {
    if (!one.optimizer) continue;
    one.optimizer->synchronize();
    const auto gradients = one.optimizer->own_gradients();
    own.insert(own.end(), gradients->begin(), gradients->end());
  }
  return own;
}

void ParallelLm::leave_out() {
  if (!state_->has_optimizer) return;
  for (LmParameterClass& one : state_->classes)
    if (one.optimizer) one.optimizer->leave_out();
  for (const at::Tensor& parameter : state_->untrained) parameter.mutable_grad().reset();
}

ParallelLm::Options ParallelLm::options() const {
  Options all;
  for (const LmParameterClass& one : state_->classes) {
    if (!one.optimizer) continue;
    for (const auto& group : one.optimizer->param_groups()) all.push_back(group.options().clone());
    break;
  }
  return all;
}

void ParallelLm::set_options(const Options& options) {
  for (LmParameterClass& one : state_->classes) {
    if (!one.optimizer) continue;
    auto& groups = one.optimizer->param_groups();
    if (groups.size() != options.size())
      throw InvalidArgument("ParallelLm: set_options() of " + std::to_string(options.size()) +
                            " groups; the optimizer has " + std::to_string(groups.size()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i].set_options(options[i]->clone());
  }
}

namespace {

void add(ParallelLm::Memory& memory, const ZeroMemory& of) {
  memory.parameters += of.parameters;
  memory.gradients += of.gradients;
  memory.state += of.state + of.masters;
  memory.buffers += of.buffers + of.units;
}

}  // namespace

ParallelLm::Memory ParallelLm::planned_memory() const {
  Memory memory;
  if (!state_->has_optimizer)
    throw InvalidArgument("ParallelLm: make_optimizer() comes before planned_memory()");
  for (const LmParameterClass& one : state_->classes)
    if (one.optimizer) add(memory, one.optimizer->planned_memory());
  for (const at::Tensor& parameter : state_->untrained)
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
  return memory;
}

ParallelLm::Memory ParallelLm::memory() const {
  Memory memory;
  const auto add_plain = [&](const at::Tensor& parameter) {
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
    if (parameter.grad().defined())
      memory.gradients += static_cast<int64_t>(parameter.grad().nbytes());
  };
  for (const LmParameterClass& one : state_->classes)
    if (one.optimizer) add(memory, one.optimizer->memory());
  if (!state_->has_optimizer)
    for (const LmParameterPart& part : state_->own) add_plain(part.tensor);
  for (const at::Tensor& parameter : state_->untrained) add_plain(parameter);
  return memory;
}

std::vector<ParallelLm::Averaging> ParallelLm::averaging() const {
  std::vector<Averaging> all;
  for (const LmParameterClass& one : state_->classes)
    if (one.optimizer) all.push_back({one.averaged.size(), one.optimizer->stats()});
  return all;
}

}  // namespace lockstep
