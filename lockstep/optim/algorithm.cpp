#include "lockstep/optim/algorithm.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::optim {
namespace {

struct Maker {
  const std::vector<torch::optim::OptimizerParamGroup>& groups;

  std::unique_ptr<torch::optim::Optimizer> operator()(
      const torch::optim::SGDOptions& options) const {
    return std::make_unique<FusedSGD>(groups, options);
  }
  std::unique_ptr<torch::optim::Optimizer> operator()(
      const torch::optim::AdamOptions& options) const {
    return std::make_unique<FusedAdam>(groups, options);
  }
  std::unique_ptr<torch::optim::Optimizer> operator()(
      const torch::optim::AdamWOptions& options) const {
    return std::make_unique<FusedAdamW>(groups, options);
  }
  std::unique_ptr<torch::optim::Optimizer> operator()(const MuonOptions& options) const {
    return std::make_unique<Muon>(groups, options);
  }
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_fused(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, const Algorithm& algorithm) {
  return std::visit(Maker{groups}, algorithm);
}

size_t states_of(const torch::optim::OptimizerOptions& options) {
  if (dynamic_cast<const MuonOptions*>(&options) != nullptr) return 1;
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return adamw->amsgrad() ? 3 : 2;
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return adam->amsgrad() ? 3 : 2;
  if (const auto* rms = dynamic_cast<const torch::optim::RMSpropOptions*>(&options))
    return 1 + (rms->momentum() > 0 ? 1 : 0) + (rms->centered() ? 1 : 0);
  if (dynamic_cast<const torch::optim::AdagradOptions*>(&options) != nullptr) return 1;
  const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options);
  return sgd != nullptr && sgd->momentum() != 0 ? 1 : 0;
}

}  // namespace lockstep::inline v0::optim
