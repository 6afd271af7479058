// Makes the options and the parameter groups of an OptimizerSpec (step_spec.h).
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/step_spec.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace lockstep::inline v0::optim {

Algorithm algorithm_of(const OptimizerSpec& spec);

// The trained parameters, by decay_groups(): first those with the weight decay, then those that
// spec.no_decay selects.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module& module,
                                                                const OptimizerSpec& spec);

}  // namespace lockstep::inline v0::optim
