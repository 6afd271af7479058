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
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/shard/internal/divided_parameters_state.h"

namespace lockstep::inline v0 {
namespace {

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
                                             const std::vector<OptimizerGroup>& groups,
                                             const ModelDivision& model) {
  std::set<std::string> known;
  for (const auto& [name, shape] : model.whole) known.insert(name);
  const auto is_of_kind = [&](const torch::optim::OptimizerOptions& options) {
    return std::visit([&](const auto& own) { return typeid(own) == typeid(options); }, algorithm);
  };
  std::map<std::string, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    const auto& options = groups[group].options;
    if (!options || !is_of_kind(*options))
      throw InvalidArgument(model.owner + ": the options of group " + std::to_string(group) +
                            " are not of the algorithm's class; give all groups options of it");
    for (const std::string& name : groups[group].names) {
      if (!known.contains(name))
        throw InvalidArgument(model.owner + ": group " + std::to_string(group) + " has '" + name +
                              "', which the model has not; name its parameters");
      if (!group_of.emplace(name, group).second)
        throw InvalidArgument(model.owner + ": '" + name + "' is in two groups; leave it in one");
    }
  }
  return group_of;
}

}  // namespace

// What other ranks count as well, ties' second places, heads that parts share and what is whole on all parts, is counted
// there.
std::vector<AveragedParameters> DividedParameters::State::make_classes() const {
  enum class Kind : uint8_t { kDivided, kWhole, kCopy };
  const auto kind_of = [](const DividedParameter& part) {
    if (part.copy || part.slice.repeated) return Kind::kCopy;
    return part.slice.whole() ? Kind::kWhole : Kind::kDivided;
  };
  // Those of the most axes first: in one order on all ranks, whatever each has.
  const auto more_axes = [](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  };
  std::set<std::vector<std::string>, decltype(more_axes)> averaged(more_axes);
  for (const DividedParameter& part : own) averaged.insert(part.averaged);
  const bool first_part = mesh.place("tensor") == 0;
  std::vector<AveragedParameters> all;
  for (const auto& axes : averaged) {
    for (const Kind kind : {Kind::kDivided, Kind::kWhole, Kind::kCopy}) {
      AveragedParameters one{
          .parts = {},
          .averaged = mesh.over(axes),
          .counts = kind == Kind::kDivided || (kind == Kind::kWhole && first_part)};
      // Each rank of the averaging has all gradients, or its own part of them.
      if (zero == 0) one.counts = one.counts && one.averaged.rank() == 0;
      for (const DividedParameter& part : own)
        if (kind_of(part) == kind && part.averaged == axes) one.parts.push_back(&part);
      if (!one.parts.empty()) all.push_back(std::move(one));
    }
  }
  return all;
}

// Biases and norms are the parameters of one dimension.
void DividedParameters::make_optimizer(const optim::Algorithm& algorithm) {
  std::vector<OptimizerGroup> groups{{{}, options_of(algorithm, /*decays=*/true)},
                                     {{}, options_of(algorithm, /*decays=*/false)}};
  for (const auto& [name, shape] : state_->whole)
    groups[shape.size() > 1 ? 0 : 1].names.push_back(name);
  make_optimizer(algorithm, groups);
}

void DividedParameters::make_optimizer(const optim::Algorithm& algorithm,
                                       const std::vector<OptimizerGroup>& groups) {
  State& state = *state_;
  if (state.has_optimizer)
    throw InvalidArgument(state.owner + ": it has an optimizer; make_optimizer() is called once");
  const std::map<std::string, size_t> group_of = groups_by_name(algorithm, groups, state);
  for (AveragedParameters& one : state.classes) {
    std::vector<std::string> names;
    Groups own;
    for (size_t group = 0; group < groups.size(); ++group) {
      std::vector<at::Tensor> tensors;
      std::vector<std::string> of_group;
      for (const DividedParameter* part : one.parts) {
        const auto found = group_of.find(part->name);
        if (found == group_of.end() || found->second != group || !part->tensor.requires_grad())
          continue;
        tensors.push_back(part->tensor);
        of_group.push_back(part->name);
      }
      names.insert(names.end(), of_group.begin(), of_group.end());
      one.names.push_back(std::move(of_group));
      // Empty ones, too: groups have the same numbers on all stages.
      own.emplace_back(std::move(tensors), groups[group].options->clone());
    }
    if (names.empty()) continue;
    ZeroOptions options{.stage = state.zero, .overlap = false};
    // A device has memory of its own, and divides a stage's layers.
    if (options.stage == 3 && !state.comm.device().is_cpu()) options.units.model = state.module;
    one.optimizer = std::make_unique<ZeroOptimizer>(one.averaged, own, names, algorithm, options);
  }
  for (const DividedParameter& part : state.own)
    if (!group_of.contains(part.name) || !part.tensor.requires_grad())
      state.untrained.push_back(part.tensor);
  state.has_optimizer = true;
}

optim::StepResult DividedParameters::update(const UpdateOptions& options) {
  State& state = *state_;
  if (!state.has_optimizer)
    throw InvalidArgument(state.owner + ": make_optimizer() comes before update()");
  if (options.max_norm) optim::check_max_norm(state.owner, *options.max_norm);
  optim::StepOptions how;
  optim::StepResult result;
  if (options.max_norm || options.loss_scale) {
    const at::Device device = state.comm.device();
    const at::Tensor sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(device));
    synchronize();
    for (AveragedParameters& one : state.classes) {
      if (one.counts && one.optimizer)
        sum.add_(optim::sum_of_squares_on(device, *one.optimizer->own_gradients()));
    }
    state.comm.iall_reduce(sum, ReduceOp::kSum, call_note(state.owner + ": gradient norm")).wait();
    const double scale = options.loss_scale.value_or(1);
    const double norm = std::sqrt(sum.item<double>()) / scale;
    const bool finite = std::isfinite(norm);
    if (!finite && !options.loss_scale)
      throw Error(state.owner + ": the norm of the gradients is " + std::to_string(norm) +
                  "; nothing was updated");
    double divisor = scale;
    if (finite && options.max_norm)
      divisor *= std::max(1.0, (norm + optim::kNormEpsilon) / *options.max_norm);
    // The kernels divide by a float32, which float64 is too good for.
    const bool in_place = state.dtype == at::kDouble && finite && divisor != 1;
    if (in_place) {
      const at::NoGradGuard no_grad;
      for (AveragedParameters& one : state.classes) {
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
  for (AveragedParameters& one : state.classes)
    if (one.optimizer) result.skipped = one.optimizer->step(how).skipped;
  for (const at::Tensor& parameter : state.untrained) parameter.mutable_grad().reset();
  return result;
}

void DividedParameters::set_learning_rate(double rate) {
  for (AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    for (auto& group : one.optimizer->param_groups()) group.options().set_lr(rate);
  }
}

std::vector<at::Tensor> DividedParameters::synchronize() {
  if (!state_->has_optimizer)
    throw InvalidArgument(state_->owner + ": make_optimizer() comes before synchronize()");
  std::vector<at::Tensor> own;
  for (AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    one.optimizer->synchronize();
    const auto gradients = one.optimizer->own_gradients();
    own.insert(own.end(), gradients->begin(), gradients->end());
  }
  return own;
}

void DividedParameters::leave_out() {
  if (!state_->has_optimizer) return;
  for (AveragedParameters& one : state_->classes)
    if (one.optimizer) one.optimizer->leave_out();
  for (const at::Tensor& parameter : state_->untrained) parameter.mutable_grad().reset();
}

DividedParameters::Options DividedParameters::options() const {
  Options all;
  for (const AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    for (const auto& group : one.optimizer->param_groups()) all.push_back(group.options().clone());
    break;
  }
  return all;
}

void DividedParameters::set_options(const Options& options) {
  for (AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    auto& groups = one.optimizer->param_groups();
    if (groups.size() != options.size())
      throw InvalidArgument(state_->owner + ": set_options() of " + std::to_string(options.size()) +
                            " groups; the optimizer has " + std::to_string(groups.size()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i].set_options(options[i]->clone());
  }
}

namespace {

void add(DividedParameters::Memory& memory, const ZeroMemory& of) {
  memory.parameters += of.parameters;
  memory.gradients += of.gradients;
  memory.state += of.state + of.masters;
  memory.buffers += of.buffers + of.units;
}

}  // namespace

DividedParameters::Memory DividedParameters::planned_memory() const {
  Memory memory;
  if (!state_->has_optimizer)
    throw InvalidArgument(state_->owner + ": make_optimizer() comes before planned_memory()");
  for (const AveragedParameters& one : state_->classes)
    if (one.optimizer) add(memory, one.optimizer->planned_memory());
  for (const at::Tensor& parameter : state_->untrained)
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
  return memory;
}

DividedParameters::Memory DividedParameters::memory() const {
  Memory memory;
  const auto add_plain = [&](const at::Tensor& parameter) {
    memory.parameters += static_cast<int64_t>(parameter.nbytes());
    if (parameter.grad().defined())
      memory.gradients += static_cast<int64_t>(parameter.grad().nbytes());
  };
  for (const AveragedParameters& one : state_->classes)
    if (one.optimizer) add(memory, one.optimizer->memory());
  if (!state_->has_optimizer)
    for (const DividedParameter& part : state_->own) add_plain(part.tensor);
  for (const at::Tensor& parameter : state_->untrained) add_plain(parameter);
  return memory;
}

std::vector<DividedParameters::Averaging> DividedParameters::averaging() const {
  std::vector<Averaging> all;
  for (const AveragedParameters& one : state_->classes)
    if (one.optimizer) all.push_back({one.averaged.size(), one.optimizer->stats()});
  return all;
}

}  // namespace lockstep::inline v0
