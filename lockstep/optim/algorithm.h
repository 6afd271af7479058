// Which optimizer, as a value: for whoever makes optimizers by configuration, or another in its
// place.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "lockstep/optim/muon.h"

namespace lockstep::optim {

// The kind, by its options' class, and the defaults of groups that have none.
using Algorithm = std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions,
                               torch::optim::AdamWOptions, MuonOptions>;

// FusedSGD, FusedAdam, FusedAdamW or Muon. Throws as these do.
std::unique_ptr<torch::optim::Optimizer> make_fused(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const Algorithm& algorithm);

// How many tensors of a parameter's shape such an optimizer keeps as its state.
size_t states_of(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::optim
