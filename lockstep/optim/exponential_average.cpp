#include "lockstep/optim/exponential_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/flat/distinct_tensors.h"

namespace lockstep::inline v0::optim {
namespace {

constexpr const char* kUpdates = "ema_updates";

at::ScalarType average_type(const at::Tensor& parameter) {
  const at::ScalarType type = parameter.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor new_average(const at::Tensor& parameter) {
  return at::empty_like(parameter, parameter.options().dtype(average_type(parameter)));
}

NamedTensors zipped(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  NamedTensors named;
  for (size_t i = 0; i < tensors.size(); ++i) named.emplace_back(names[i], tensors[i]);
  return named;
}

}  // namespace

ExponentialAverage::ExponentialAverage(const NamedTensors& parameters,
                                       const ExponentialAverageOptions& options)
    : options_(options) {
  if (!(options.decay >= 0 && options.decay < 1))
    throw InvalidArgument("ExponentialAverage: decay is " + std::to_string(options.decay) +
                          "; give 0 or more, and less than 1");
  for (const auto& [name, parameter] : distinct_tensors(parameters)) {
    names_.push_back(name);
    parameters_.push_back(parameter);
  }
}

double ExponentialAverage::next_decay() const {
  if (updates_ == 0) return 0;
  const auto n = static_cast<double>(updates_);
  return options_.warm_up ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay;
}

void ExponentialAverage::update() {
  if (!kept_.empty())
    throw InvalidArgument(
        "ExponentialAverage: the average is in the model; end its InModel before update()");
  const at::NoGradGuard no_grad;
  if (averages_.empty()) {
    std::vector<at::Tensor> averages;
    for (const at::Tensor& parameter : parameters_) averages.push_back(new_average(parameter));
    averages_ = std::move(averages);
  }
  const double weight = 1 - next_decay();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (updates_ == 0 || !parameter.is_floating_point())
      averages_[i].copy_(parameter);
    else
      averages_[i].lerp_(parameter.to(averages_[i].scalar_type()), weight);
  }
  ++updates_;
}

ExponentialAverage::InModel::InModel(ExponentialAverage& average) : average_(average) {
  if (average.updates_ == 0)
    throw InvalidArgument("ExponentialAverage: there is no average before the first update()");
  if (!average.kept_.empty())
    throw InvalidArgument("ExponentialAverage: the average is in the model already");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> kept;
  for (const at::Tensor& parameter : average.parameters_)
    kept.push_back(parameter.detach().clone());
  average.kept_ = std::move(kept);
  try {
    for (size_t i = 0; i < average.parameters_.size(); ++i)
      average.parameters_[i].copy_(average.averages_[i]);
  } catch (...) {
    average.put_back();
    throw;
  }
}

ExponentialAverage::InModel::~InModel() {
  average_.put_back();
}

void ExponentialAverage::put_back() noexcept {
  const at::NoGradGuard no_grad;
  try {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].copy_(kept_[i]);
  } catch (const std::exception& error) {  // of a device; its next call throws, too
    log_warning(std::string("the parameters of training are not put back: ") + error.what());
  }
  kept_.clear();
}

NamedTensors ExponentialAverage::averages() const {
  return zipped(names_, averages_);
}

NamedTensors ExponentialAverage::training_parameters() const {
  return zipped(names_, kept_.empty() ? parameters_ : kept_);
}

int64_t ExponentialAverage::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parameters_)
    bytes += parameter.numel() * static_cast<int64_t>(c10::elementSize(average_type(parameter)));
  return bytes;
}

Safetensors ExponentialAverage::state() const {
  if (updates_ == 0)
    throw InvalidArgument("ExponentialAverage: there is no state before the first update()");
  Safetensors state{.tensors = averages(), .metadata = {{kUpdates, std::to_string(updates_)}}};
  sort_by_name(&state.tensors);
  return state;
}

void ExponentialAverage::load(const Safetensors& state, const std::string& source) {
  const auto updates = state.metadata.find(kUpdates);
  const auto count = updates == state.metadata.end() ? std::nullopt : parse_int(updates->second, 1);
  if (!count) throw CheckpointError(source + ": is no state of an ExponentialAverage");
  const std::map<std::string, at::Tensor> given(state.tensors.begin(), state.tensors.end());
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto tensor = given.find(names_[i]);
    if (tensor == given.end()) throw CheckpointError(source + ": has no " + names_[i]);
    if (tensor->second.sizes() != parameters_[i].sizes() ||
        tensor->second.scalar_type() != average_type(parameters_[i]))
      throw CheckpointError(source + ": " + names_[i] +
                            " has another shape or type than the model");
    found.push_back(tensor->second);
  }
  for (const auto& [name, tensor] : state.tensors)
    if (std::find(names_.begin(), names_.end(), name) == names_.end())
      throw CheckpointError(source + ": has " + name + ", and the model has not");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  for (size_t i = 0; i < names_.size(); ++i) {
    averages.push_back(new_average(parameters_[i]));
    averages.back().copy_(found[i]);
  }
  averages_ = std::move(averages);
  updates_ = *count;
}

}  // namespace lockstep::inline v0::optim
