// The kind and options of an optimizer as a value, for code that makes optimizers by configuration,
// or replaces one.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/optim/muon.h"

namespace lockstep::inline v0::optim {

// The kind, by its options' class, and the defaults of groups that have no options.
using Algorithm = std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions,
                               torch::optim::AdamWOptions, MuonOptions>;

// Makes a FusedSGD, FusedAdam, FusedAdamW or Muon.
// Throws: as these do.
LOCKSTEP_API std::unique_ptr<torch::optim::Optimizer> make_fused(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const Algorithm& algorithm);

// The number of tensors of a parameter's shape in such an optimizer's state.
LOCKSTEP_API size_t states_of(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::inline v0::optim
