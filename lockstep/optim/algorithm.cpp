#include "lockstep/optim/algorithm.h"

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::optim {
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

}  // namespace lockstep::optim
