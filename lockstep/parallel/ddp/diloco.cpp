#include "lockstep/parallel/ddp/diloco.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <set>
#include <utility>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

void check_diloco(const DiLoCoOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& takes) {
    throw InvalidArgument("DiLoCo: " + what + "; give " + takes);
  };
  if (options.period < 1)
    refuse("the period is " + std::to_string(options.period) + " steps", "1 or more");
  if (!(options.lr > 0)) refuse("lr is " + std::to_string(options.lr), "a number above 0");
  if (!(options.momentum >= 0 && options.momentum < 1))
    refuse("momentum is " + std::to_string(options.momentum), "0 or more, and less than 1");
}

at::ScalarType outer_type(const at::Tensor& parameter) {
  const at::ScalarType type = parameter.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

constexpr const char *kOuter = "outer.", *kMomentum = "momentum.", *kSteps = "steps";

}  // namespace

DiLoCo::DiLoCo(const NamedTensors& parameters, Communicator comm, const DiLoCoOptions& options)
    : comm_(std::move(comm)), options_(options) {
  check_diloco(options);
  NamedTensors once;
  std::set<const at::TensorImpl*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.is_floating_point())
      throw InvalidArgument("DiLoCo: " + name + " is not of floating point");
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    once.emplace_back(name, parameter);
    names_.push_back(name);
    parameters_.push_back(parameter);
  }
  check_same_on_all_ranks(comm_, once);
  const at::NoGradGuard no_grad;
  broadcast_tensors(comm_, once);
  for (const at::Tensor& parameter : parameters_) {
    outer_.push_back(parameter.detach().to(outer_type(parameter), /*non_blocking=*/false,
                                           /*copy=*/true));
    if (options_.momentum > 0) momentum_.push_back(at::zeros_like(outer_.back()));
  }
}

bool DiLoCo::step(Communicator::Site site) {
  ++inner_steps_;
  if (inner_steps_ < options_.period) return false;
  outer_step(site);
  return true;
}

// The differences are in the parameters' own memory where that has their type.
void DiLoCo::outer_step(Communicator::Site site) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> differences;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor parameter = parameters_[i].detach();
    differences.push_back(parameter.to(outer_[i].scalar_type()));
    differences[i].neg_().add_(outer_[i]);
  }
  all_reduce_coalesced(comm_, differences, ReduceOp::kAvg, site);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = differences[i];
    if (options_.momentum > 0) {
      momentum_[i].mul_(options_.momentum).add_(gradient);
      if (options_.nesterov)
        gradient.add_(momentum_[i], options_.momentum);
      else
        gradient.copy_(momentum_[i]);
    }
    outer_[i].sub_(gradient, options_.lr);
    parameters_[i].copy_(outer_[i]);
  }
  inner_steps_ = 0;
  ++outer_steps_;
}

NamedTensors DiLoCo::state() const {
  NamedTensors state{{kSteps, at::tensor({inner_steps_, outer_steps_}, at::kLong)}};
  for (size_t i = 0; i < outer_.size(); ++i) state.emplace_back(kOuter + names_[i], outer_[i]);
  for (size_t i = 0; i < momentum_.size(); ++i)
    state.emplace_back(kMomentum + names_[i], momentum_[i]);
  return state;
}

void DiLoCo::load_state(const NamedTensors& state) {
  const NamedTensors mine = this->state();
  const auto find = [](const NamedTensors& in, const std::string& name) -> const at::Tensor* {
    for (const auto& [key, tensor] : in)
      if (key == name) return &tensor;
    return nullptr;
  };
  for (const auto& [name, tensor] : mine) {
    const at::Tensor* found = find(state, name);
    if (found == nullptr) throw InvalidArgument("DiLoCo: the state has no " + name);
    if (found->sizes() != tensor.sizes() || found->scalar_type() != tensor.scalar_type())
      throw InvalidArgument("DiLoCo: " + name + " of the state has another shape or type");
  }
  for (const auto& [name, tensor] : state)
    if (find(mine, name) == nullptr)
      throw InvalidArgument("DiLoCo: the state has " + name + ", and this has not");
  const at::NoGradGuard no_grad;
  const at::Tensor steps = find(state, kSteps)->cpu();
  inner_steps_ = steps[0].item<int64_t>();
  outer_steps_ = steps[1].item<int64_t>();
  for (size_t i = 0; i < outer_.size(); ++i) outer_[i].copy_(*find(state, kOuter + names_[i]));
  for (size_t i = 0; i < momentum_.size(); ++i)
    momentum_[i].copy_(*find(state, kMomentum + names_[i]));
}

}  // namespace lockstep::inline v0
