// The memory of a step: planned before the first one, counted after it, said and drawn.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/train/step_memory.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// "409 MiB"; binary units.
std::string bytes_text(int64_t bytes);
// "parameters 205 MiB, gradients 205 MiB, optimizer 409 MiB, buffers 79 MiB, activations 1.2 GiB"; parts of no
// bytes are left out.
std::string to_text(const StepMemory& memory);
// {"parameters": ..., ...}, bytes.
nlohmann::ordered_json to_json(const StepMemory& memory);
// Bars of both, a colour a part; in English or in Chinese.
std::string memory_svg(const StepMemory& planned, const StepMemory& counted, bool chinese = false);

// For rank 0; asks the strategy alone, which does not communicate.
class MemoryCallback final : public TrainCallback {
 public:
  // All is referred to and must outlive it. `say` gets a line before the first step, and one after it where the plan has
  // no activations or the step took something else by more than a tenth; empty: nobody. `picture`: where memory_svg() goes,
  // and beside it in Chinese (in_chinese()). `activations`: planned ones (activation_plan.h).
  MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                 std::function<void(const std::string&)> say, std::filesystem::path picture,
                 std::optional<int64_t> activations = std::nullopt);
  void on_step(const TrainerState& state, const StepResult& result) override;

  const StepMemory& planned() const { return planned_; }
  const StepMemory& counted() const { return counted_; }  // zeros before the first step

 private:
  Strategy& strategy_;
  torch::optim::Optimizer& optimizer_;
  std::function<void(const std::string&)> say_;
  std::filesystem::path picture_;
  StepMemory planned_, counted_;
  bool plans_all_ = false;  // with activations
};

}  // namespace lockstep
