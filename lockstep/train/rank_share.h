// A rank's share of a run as bytes in memory: what RollbackRecovery (recover/rollback_recovery.h)
// keeps for ranks that die. For this room; not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

// For messages about it.
inline constexpr const char* kGivenBack = "the state that a recovery gave back";

// The parameters that an optimizer of these groups changes.
std::unordered_set<const c10::TensorImpl*> trained_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

// The objects whose state is a rank's share. The strategy has a model.
struct RankParts {
  Strategy& strategy;
  torch::optim::Optimizer& optimizer;
  amp::GradScaler* scaler = nullptr;
};

// Throws: InvalidArgument for a strategy whose ranks train apart: what they have to themselves is in
// no share.
void check_has_shares(const Strategy& strategy, const std::string& who);

// Parameters and the optimizer's state (StrategyState::shares(), or all of them where every rank
// has them), buffers and parameters that no optimizer changes, the device's generator, the scaler's
// state, and `extra`. `memory`: an earlier share, whose memory is used again where that suffices.
// Call it between steps. Does not communicate.
at::Tensor written_share(const RankParts& of, const std::string& extra, at::Tensor memory);
// Takes it back, and returns `extra`.
// Collective: all ranks, each with its own share.
// Throws: DataError for bytes of another model, strategy or optimizer.
std::string restored_share(const RankParts& of, const at::Tensor& share);

}  // namespace lockstep::inline v0
