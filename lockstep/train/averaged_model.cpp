#include "lockstep/train/averaged_model.h"

#include <torch/nn/module.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kTraining = "training";  // training.safetensors

std::string text_of(double decay) {
  return nlohmann::json(decay).dump();
}

[[noreturn]] void refuse(double decay, const std::string& why) {
  throw InvalidArgument("ema is " + text_of(decay) + ", but " + why);
}

}  // namespace

void check_has_average(const Strategy& strategy, double decay) {
  if (decay == 0) return;
  const std::string under = "under strategy " + strategy.name();
  if (strategy.traits().divides_model || divides_parameters(strategy.name()))
    refuse(decay, under +
                      " the ranks divide or share one copy of the parameters; take a strategy in "
                      "which each has its own, such as ddp or zero2");
  if (strategy.traits().trains_apart)
    refuse(decay, under + " the ranks' parameters differ between two outer steps; give 0");
}

std::shared_ptr<optim::ExponentialAverage> average_of_run(ModelOnRanks& run,
                                                          const TrainSpec& spec) {
  check_ema(spec.ema, spec.ema_buffers);
  if (spec.ema == 0) return nullptr;
  agree(run.comm(), "ema " + text_of(spec.ema) + (spec.ema_buffers ? " with buffers" : ""));
  check_has_average(run.strategy(), spec.ema);
  if (run.recovers())
    refuse(spec.ema,
           "the run goes on when ranks die, and a step that is repeated or a new rank would make "
           "another average; leave out --on-failure, or ema");
  const optim::ExponentialAverageOptions options{
      .decay = spec.ema, .warm_up = true, .averages_buffers = spec.ema_buffers};
  for (const auto& [name, tensor] :
       options.averages_buffers ? state_of(run.model()) : parameters_of(run.model()))
    if (tensor.is_floating_point() && tensor.element_size() < 4)
      refuse(spec.ema, name + " has 16 bits; give 0");
  return std::make_shared<optim::ExponentialAverage>(run.model(), options);
}

std::function<Evaluation()> of_average(std::shared_ptr<optim::ExponentialAverage> average,
                                       std::function<Evaluation()> evaluate) {
  return [average = std::move(average), evaluate = std::move(evaluate)] {
    const auto in_model = average->in_model();
    return evaluate();
  };
}

void add_training_parameters(const optim::ExponentialAverage& average, Checkpoint& checkpoint) {
  Safetensors& training = checkpoint.tensors[kTraining];
  training = {.tensors = average.training_parameters(), .metadata = average.state().metadata};
  sort_by_name(&training.tensors);
}

void take_average(optim::ExponentialAverage& average, const torch::nn::Module& model,
                  Checkpoint& checkpoint, const std::string& source) {
  const auto training = checkpoint.tensors.find(kTraining);
  if (training == checkpoint.tensors.end())
    throw CheckpointError(source + ": has no " + kTraining +
                          ".safetensors, since its run had no average of the parameters");
  std::map<const at::TensorImpl*, std::string> first;  // the name under which the average has it
  Safetensors averages{.metadata = training->second.metadata};
  for (const auto& [name, of_model] : state_of(model)) {
    const auto [own, is_first] = first.emplace(of_model.unsafeGetTensorImpl(), name);
    const at::Tensor* trained = training->second.find(own->second);
    for (auto& [key, tensor] : checkpoint.model.tensors) {
      if (key != name || trained == nullptr) continue;
      if (is_first) averages.tensors.emplace_back(name, tensor);
      tensor = *trained;
    }
  }
  average.load(averages, source);
}

}  // namespace lockstep::inline v0
