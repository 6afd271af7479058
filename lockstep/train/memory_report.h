// Reports the memory of a step: the plan before the first step, and the count after it.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/train/step_memory.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// Binary units: "409 MiB".
std::string bytes_text(int64_t bytes);
// "parameters 205 MiB, gradients 205 MiB, optimizer 409 MiB, buffers 79 MiB, activations 1.2 GiB";
// "average 205 MiB" before the activations where there is one.
// Parts without bytes are left out.
std::string to_text(const StepMemory& memory);
// {"parameters": ..., ...} in bytes.
nlohmann::ordered_json to_json(const StepMemory& memory);
// Draws a bar for each of them, with a colour for each part.
std::string memory_svg(const StepMemory& planned, const StepMemory& counted, bool chinese = false);

// Does not communicate.
// Requires: rank 0.
class MemoryCallback final : public TrainCallback {
 public:
  // The strategy and the optimizer must outlive it. `say` gets a line before the first step. It
  // gets another one after it if the plan has no activations, or if the step took more than a tenth
  // more or less. Empty: no lines. `picture`: the file of memory_svg(), with a Chinese version
  // beside it (in_chinese()). `activations`: the planned ones (activation_plan.h). `average`: bytes
  // of a moving average of the parameters.
  MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                 std::function<void(const std::string&)> say, std::filesystem::path picture,
                 std::optional<int64_t> activations = std::nullopt, int64_t average = 0);
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

}  // namespace lockstep::inline v0
