#include "lockstep/parallel/ddp/diloco.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <set>
#include <utility>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/distinct_tensors.h"

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

// Ranks with other options would go on with other parameters, and nothing else would tell.
void check_same_options(Communicator& comm, const DiLoCoOptions& options) {
  const auto number = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  check_equal_values(comm,
                     {{"the option period", number(static_cast<double>(options.period))},
                      {"the option lr", number(options.lr)},
                      {"the option momentum", number(options.momentum)},
                      {"the option nesterov", number(options.nesterov ? 1 : 0)}},
                     "the beginning of DiLoCo");
}

constexpr const char *kOuter = "outer.", *kMomentum = "momentum.", *kSteps = "steps";

const at::Tensor* find(const NamedTensors& in, const std::string& name) {
  for (const auto& [key, tensor] : in)
    if (key == name) return &tensor;
  return nullptr;
}

// In what the `given` tensors are not the `expected` ones, in names, shapes or types; "" for
// nothing.
std::string difference(const std::string& what, const NamedTensors& given,
                       const NamedTensors& expected) {
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* found = find(given, name);
    if (found == nullptr) return what + " has no " + name;
    if (found->sizes() != tensor.sizes() || found->scalar_type() != tensor.scalar_type())
      return name + " of " + what + " has another shape or type";
  }
  for (const auto& [name, tensor] : given)
    if (find(expected, name) == nullptr) return what + " has " + name + ", and this has not";
  return "";
}

}  // namespace

DiLoCo::DiLoCo(const NamedTensors& parameters, Communicator comm, const DiLoCoOptions& options)
    : comm_(std::move(comm)), options_(options) {
  check_diloco(options);
  const NamedTensors once = distinct_tensors(parameters);
  std::set<const void*> places;
  for (const auto& [name, parameter] : once) {
    if (!parameter.is_floating_point())
      throw InvalidArgument("DiLoCo: " + name + " is not of floating point");
    if (parameter.numel() > 0 && !places.insert(parameter.const_data_ptr()).second)
      throw InvalidArgument("DiLoCo: " + name + " shares its memory with another parameter");
    names_.push_back(name);
    parameters_.push_back(parameter);
  }
  check_same_on_all_ranks(comm_, once);
  check_same_options(comm_, options_);
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

// The differences are in the parameters' own memory where that has their type. They are those to
// what the ranks began with, which has fewer bits than the outer parameters where the model's are
// short.
void DiLoCo::outer_step(Communicator::Site site) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> differences;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor parameter = parameters_[i].detach();
    differences.push_back(parameter.to(outer_[i].scalar_type()));
    differences[i].neg_().add_(outer_[i].to(parameter.scalar_type()));
  }
  try {
    all_reduce_coalesced(comm_, differences, ReduceOp::kAvg, site);
  } catch (...) {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].copy_(outer_[i]);
    inner_steps_ = 0;
    throw;
  }
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

// What keeps this rank from continuing with `state`; "" for nothing.
std::string DiLoCo::objection(const NamedTensors& state, const NamedTensors& own) const {
  const NamedTensors mine = this->state();
  if (const std::string why = difference("the state", state, mine); !why.empty()) return why;
  if (const std::string why = own.empty() ? "" : difference("own", own, parameters()); !why.empty())
    return why;
  const at::Tensor steps = find(state, kSteps)->cpu();
  const auto inner = steps[0].item<int64_t>(), outer = steps[1].item<int64_t>();
  if (inner < 0 || outer < 0) return "the steps of the state are damaged";
  if (inner > 0 && own.empty())
    return "the state was taken " + std::to_string(inner) +
           " inner steps after an outer one, when each rank had parameters of its own; give them, "
           "or a state from behind an outer step";
  return "";
}

NamedTensors DiLoCo::parameters() const {
  NamedTensors parameters;
  for (size_t i = 0; i < names_.size(); ++i) parameters.emplace_back(names_[i], parameters_[i]);
  return parameters;
}

int64_t DiLoCo::bytes() const {
  int64_t bytes = 0;
  for (const auto* tensors : {&outer_, &momentum_})
    for (const at::Tensor& tensor : *tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

void DiLoCo::begin_anew() {
  check_equal_values(comm_, parameters(), "the beginning of DiLoCo");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < outer_.size(); ++i) outer_[i].copy_(parameters_[i]);
  for (at::Tensor& momentum : momentum_) momentum.zero_();
  inner_steps_ = outer_steps_ = 0;
}

void DiLoCo::load_state(const NamedTensors& state, const NamedTensors& own) {
  const std::string why = objection(state, own);
  at::Tensor refused = at::scalar_tensor(why.empty() ? 0 : 1, at::kLong);
  comm_.all_reduce(refused, ReduceOp::kMax);
  if (!why.empty()) throw InvalidArgument("DiLoCo: " + why);
  if (refused.item<int64_t>() != 0)
    throw InvalidArgument("DiLoCo: another rank refuses its state, and says why");
  NamedTensors ordered;
  for (const auto& [name, tensor] : this->state()) ordered.emplace_back(name, *find(state, name));
  check_equal_values(comm_, ordered, "the state of DiLoCo");
  const at::NoGradGuard no_grad;
  const at::Tensor steps = find(state, kSteps)->cpu();
  inner_steps_ = steps[0].item<int64_t>();
  outer_steps_ = steps[1].item<int64_t>();
  if (!own.empty())
    for (size_t i = 0; i < names_.size(); ++i) parameters_[i].copy_(*find(own, names_[i]));
  for (size_t i = 0; i < outer_.size(); ++i) outer_[i].copy_(*find(state, kOuter + names_[i]));
  for (size_t i = 0; i < momentum_.size(); ++i)
    momentum_[i].copy_(*find(state, kMomentum + names_[i]));
}

}  // namespace lockstep::inline v0
