// Compares a divided model with the whole one before it trains.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/products/internal/model_state.h"

namespace lockstep::inline v0 {
namespace {

double default_tolerance(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-8;
  return dtype == at::kFloat ? 2e-3 : 5e-2;
}

double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0 : x.detach().to(at::kDouble).abs().max().item<double>();
}

// The difference is relative to the largest value, or to `floor` where all values are smaller.
double difference(const at::Tensor& found, const at::Tensor& expected, double floor) {
  const double most = std::max(largest(expected), floor);
  const double apart = largest(found.to(at::kDouble) - expected.to(at::kDouble));
  if (std::isnan(apart)) return apart;
  return most == 0 ? apart : apart / most;
}

void drop_gradients(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
}

}  // namespace

NamedTensors ParallelModel::State::move_values() {
  const at::NoGradGuard no_grad;
  NamedTensors values;
  for (const auto& [name, parameter] : internal::parameters_once(*model)) {
    values.emplace_back(name, parameter.detach().clone());
    const double begin = static_cast<double>(fingerprint(name) % 1000);
    const at::Tensor moved = at::arange(parameter.numel(), at::kDouble)
                                 .mul_(1.3)
                                 .add_(begin)
                                 .sin_()
                                 .mul_(0.02)
                                 .view(parameter.sizes());
    parameter.detach().add_(moved.to(parameter.options()));
  }
  return values;
}

void ParallelModel::State::restore_values(const NamedTensors& values, const TensorParts& parts) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> whole(values.begin(), values.end());
  for (const auto& [name, parameter] : internal::parameters_once(*model)) {
    const PartSlice slice = parts.slice(name);
    const at::Tensor& from = whole.at(name);
    parameter.detach().copy_(
        slice.whole() ? from : from.narrow(slice.dim, slice.begin, slice.end - slice.begin));
  }
}

// The batch is cut into two parts of unequal sizes, as micro-batches are.
void ParallelModel::State::check_loss(const at::Tensor& outputs) const {
  const int64_t rows = outputs.size(0), some = std::max<int64_t>(1, rows / 3);
  if (rows < 2) return;
  const at::NoGradGuard no_grad;
  const double all = count(options.targets),
               whole = options.loss(outputs, options.targets).item<double>();
  double sum = 0;
  for (const auto& [first, size] : {std::pair{int64_t{0}, some}, {some, rows - some}}) {
    const at::Tensor targets = options.targets.narrow(0, first, size);
    if (const double part = count(targets); part != 0)
      sum += options.loss(outputs.narrow(0, first, size), targets).item<double>() * part / all;
  }
  if (!(std::abs(sum - whole) <= 1e-3 * std::max(std::abs(whole), 1e-3)))
    throw InvalidArgument(
        "ParallelModel: the loss of the example is " + std::to_string(whole) +
        ", and that of its parts by what they count " + std::to_string(sum) +
        "; give a loss that is a mean, and a count of the targets that are in it");
}

ParallelModel::State::Expected ParallelModel::State::run_whole_model() {
  const at::AutoGradMode with_gradients(true);
  drop_gradients(*model);
  Expected expected;
  const at::Tensor outputs = forward(options.inputs);
  expected.outputs = outputs.detach();
  check_loss(expected.outputs);
  options.loss(outputs, options.targets).backward();
  for (const auto& [name, tensor] : parameters_of(*model))
    if (tensor.grad().defined()) expected.gradients[name] = tensor.grad();
  drop_gradients(*model);
  return expected;
}

at::Tensor ParallelModel::State::run_divided_model() {
  const at::AutoGradMode with_gradients(true);
  at::Tensor x = own_inputs(options.inputs);
  if (has_stages()) {
    size_t chunk = 0;
    int behind = how.cut[0], at = 0;
    for (auto unit = units->begin(); unit != units->end(); ++unit, ++at) {
      if (at == behind) {
        between.push_back({.shape = x.sizes().slice(1).vec(), .dtype = x.scalar_type()});
        behind += how.cut[++chunk];
      }
      x = unit->forward<at::Tensor>(x);
    }
  } else {
    x = forward(x);
  }
  share_of_loss(x, own_targets(options.targets), count(options.targets)).backward();
  return x.detach();
}

void ParallelModel::State::check_against(const Expected& expected, const TensorParts& parts) {
  const at::Tensor outputs = run_divided_model();
  const at::NoGradGuard no_grad;
  const double tolerance =
      options.tolerance > 0 ? options.tolerance : default_tolerance(outputs.scalar_type());
  at::Tensor own = expected.outputs;
  if (outputs.sizes() != own.sizes() && own.dim() > 1) own = own_targets(own);
  std::string worst;
  if (outputs.sizes() != own.sizes()) {
    worst = "its outputs have another shape than the whole model's";
  } else if (const double apart = difference(outputs, own, 0); !(apart <= tolerance)) {
    worst = "its outputs are " + std::to_string(apart) + " from the whole model's";
  }
  double most = 0;
  for (const auto& [name, gradient] : expected.gradients) most = std::max(most, largest(gradient));
  Communicator& context = mesh["context"];
  for (const auto& [name, parameter] : parameters_of(*model)) {
    if (!parameter.requires_grad()) continue;
    at::Tensor found =
        parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter.detach());
    if (context.size() > 1) context.all_reduce(found, ReduceOp::kAvg);
    const auto whole = expected.gradients.find(name);
    const PartSlice slice = parts.slice(name);
    at::Tensor truth = at::zeros_like(found);
    if (whole != expected.gradients.end())
      truth = slice.whole() ? whole->second
                            : whole->second.narrow(slice.dim, slice.begin, slice.end - slice.begin);
    const double apart = difference(found, truth, 1e-3 * most);
    if (worst.empty() && !(apart <= tolerance))
      worst =
          "the gradient of '" + name + "' is " + std::to_string(apart) + " from the whole model's";
  }
  drop_gradients(*model);
  // Some ranks may see the difference and others not.
  for (const nlohmann::json& one : all_gather_object(comm, nlohmann::json(worst)))
    if (const auto text = one.get<std::string>(); !text.empty())
      throw InvalidArgument(
          "ParallelModel: the divided model is not the whole one: " + text +
          " (relative, on the example); look at the plan's rules for what computes with it, and "
          "for modules between divided ones that no rule names (norms and other parameters that "
          "work on divided rows are of style rows)");
}

}  // namespace lockstep::inline v0
