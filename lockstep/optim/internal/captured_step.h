// CapturedStep: what the host does for each replay of a graph that an optimizer's step is part of.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/device/graph.h"

namespace lockstep::optim::internal {

class FlatGroups;
class LeftOutSteps;
class StateKind;

// The numbers that a step's kernels take from the host and that change from step to step, in memory of the device to
// which each replay brings what they are then: learning rates, and which step it is. Made while the step is captured.
// The optimizer and its parts outlive the graph.
class CapturedStep {
 public:
  // `left_out`: where the device may leave the step out of `parameters`; else null.
  CapturedStep(torch::optim::Optimizer& optimizer, FlatGroups& flat, const StateKind& kind,
               LeftOutSteps* left_out, std::vector<at::Tensor> parameters, at::Device device);

  // Before the first step is counted.
  static void join(const std::shared_ptr<CapturedStep>& self, device::Capture& capture);

  // One float32 each, on the device, valid in the graph's replays.
  at::Tensor learning_rate(size_t group);
  at::Tensor step_of(const at::Tensor& parameter);
  bool leaves_out() const { return left_out_ != nullptr; }

  // The parameter has been counted to take this step.
  void takes(const at::Tensor& parameter, int64_t step);
  // State that came from elsewhere is copied to where the graph has it, once, before the first replay.
  void bring_home(at::Tensor& held, const at::Tensor& view);

 private:
  struct Moved {
    at::Tensor* held;  // valid while it is captured
    at::Tensor from, to;
  };

  at::Tensor add(std::function<double()> now);
  void before(bool first);
  void undo();
  // Of the parameters that take the step.
  void count_steps(int64_t by);
  // Only learning rates have changed.
  void check_settings();
  // Those that shared a step's number at the capture still do.
  void check_steps() const;
  // Loaded state comes to where the graph has it.
  void bring_states_home();
  void bring_numbers();

  torch::optim::Optimizer& optimizer_;
  FlatGroups& flat_;
  const StateKind& kind_;
  LeftOutSteps* left_out_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> settings_;  // of the groups
  at::Tensor numbers_;
  std::vector<std::function<double()>> now_;
  std::unordered_map<const c10::TensorImpl*, int64_t> steps_;  // at the capture
  std::vector<Moved> moved_;
};

}  // namespace lockstep::optim::internal
