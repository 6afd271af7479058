// Reports the memory of a step: predicted before the first one, and allocated in it.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// Binary units: "409 MiB".
LOCKSTEP_API std::string bytes_text(int64_t bytes);
// "parameters 205 MiB, gradients 205 MiB, optimizer 409 MiB, buffers 79 MiB, activations 1.2 GiB,
// temporaries 80 MiB"; "average 205 MiB" before the activations where there is one. Parts without
// bytes are left out.
LOCKSTEP_API std::string to_text(const StepMemory& memory);
// {"parameters": ..., ..., "total": ...} in bytes. "total" may be less than the sum of the parts
// (StepBytes::overlap).
LOCKSTEP_API nlohmann::ordered_json to_json(const StepMemory& memory);
// Draws a bar for each of them, with a colour for each part.
LOCKSTEP_API std::string memory_svg(const StepMemory& predicted, const StepMemory& allocated,
                                    bool chinese = false);

// A rank's.
struct LOCKSTEP_API RankMemory {
  StepMemory predicted, allocated;  // allocated: zeros before the first step
  // By which share of what was allocated the prediction is above it (below 0: below it).
  double difference() const;
};
// {"predicted": {...}, "allocated": {...}, "difference_percent": 0.4, "ranks": [{"predicted": bytes,
// "allocated": bytes}, ...]}: of rank 0 in parts, and of every rank the totals.
LOCKSTEP_API nlohmann::ordered_json to_json(const std::vector<RankMemory>& ranks);

// Collective: its constructor, and on_step() after the first step.
class LOCKSTEP_API MemoryCallback final : public TrainCallback {
 public:
  // The strategy and the optimizer must outlive it. On rank 0 `say` gets a line before the first
  // step, and one after it: of the rank that takes most. Empty: no lines. `picture`: the file of
  // memory_svg() of that rank, written by rank 0, with a Chinese version beside it (in_chinese()).
  // `step`: what the step's computation was planned to take (step_plan.h), the same on all ranks
  // whether there is one. Without it there is no line before the first step. `average`: bytes of a
  // moving average of the parameters.
  MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                 std::function<void(const std::string&)> say, std::filesystem::path picture,
                 const std::optional<StepBytes>& step = std::nullopt, int64_t average = 0);
  void on_step(const TrainerState& state, const StepResult& result) override;

  const std::vector<RankMemory>& ranks() const { return ranks_; }  // the same on all ranks

 private:
  std::string place() const;  // of the rank that takes most, for lines

  Strategy& strategy_;
  torch::optim::Optimizer& optimizer_;
  std::function<void(const std::string&)> say_;
  std::filesystem::path picture_;
  std::vector<RankMemory> ranks_;
  size_t most_ = 0;  // the rank that takes most
  int64_t average_;
  bool plans_all_ = false;  // with what the computation takes
  bool counted_ = false;
};

}  // namespace lockstep::inline v0
