// Selects the parameters for weight decay: matrices and filters, without biases and the scales of
// normalisation layers, as in the recipes of BERT and most transformers.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/step_spec.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace lockstep::inline v0::optim {

// The parameters with weight decay, and those without.
struct DecayGroups {
  NamedTensors decay;
  NamedTensors no_decay;
};

// Parameters that require a gradient, in the module's order, each once: one that several modules
// share has its first name. Pure: the module is not changed. The tensors are the module's own.
LOCKSTEP_API DecayGroups split_by_decay(const torch::nn::Module& module, const NoDecay& rule = {});

// The same as parameter groups for an optimizer: first those with `options` unchanged, then those
// with weight decay 0; a group without parameters is left out. Options is
// torch::optim::AdamWOptions, AdamOptions or SGDOptions. Lockstep's optimizers use the groups
// unchanged. torch::optim::SGD and Adam (2.13) treat a group's 0 as not set and use the weight
// decay of their defaults there: give those defaults with a weight decay of 0.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const torch::nn::Module& module,
                                                            const Options& options,
                                                            const NoDecay& rule = {}) {
  const DecayGroups split = split_by_decay(module, rule);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto add = [&groups](const NamedTensors& named, const Options& group_options) {
    if (named.empty()) return;
    std::vector<at::Tensor> tensors;
    for (const auto& entry : named) tensors.push_back(entry.second);
    groups.emplace_back(std::move(tensors), std::make_unique<Options>(group_options));
  };
  add(split.decay, options);
  add(split.no_decay, Options(options).weight_decay(0));
  return groups;
}

}  // namespace lockstep::inline v0::optim
