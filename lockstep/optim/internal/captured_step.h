// CapturedStep: what the host does for each replay of a graph that an optimizer's step is part of.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "lockstep/device/graph.h"

namespace lockstep::optim::internal {

class FlatGroups;
class StateKind;

// The numbers that a step's kernels take from the host and that change from step to step, in memory of the device to
// which each replay brings what they are then: learning rates, and which step it is. Made while the step is captured.
// The optimizer and its parts outlive the graph.
class CapturedStep {
 public:
  CapturedStep(torch::optim::Optimizer& optimizer, FlatGroups& flat, const StateKind& kind,
               at::Device device);

  // One float32 each, on the device, valid in the graph's replays.
  at::Tensor learning_rate(size_t group);
  at::Tensor step_of(const at::Tensor& parameter);

  // The step that is being captured takes these parameters. Once all numbers are asked for.
  static void join(const std::shared_ptr<CapturedStep>& self, device::Capture& capture,
                   const std::vector<at::Tensor>& parameters);

 private:
  at::Tensor add(std::function<double()> now);
  // Of the parameters that take the step.
  void count_steps(int64_t by);
  // Loaded state comes to where the graph has it.
  void bring_states_home();
  void bring_numbers();

  torch::optim::Optimizer& optimizer_;
  FlatGroups& flat_;
  const StateKind& kind_;
  at::Tensor numbers_;
  std::vector<std::function<double()>> now_;
  std::unordered_set<const c10::TensorImpl*> parameters_;
};

}  // namespace lockstep::optim::internal
