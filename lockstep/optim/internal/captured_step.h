// CapturedStep: the host's work for each replay of a graph that contains an optimizer's step.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/device/graph.h"

namespace lockstep::inline v0::optim::internal {

class FlatGroups;
class LeftOutSteps;
class StateKind;

// The numbers that a step's kernels get from the host and that change from step to step, in memory
// of the device that each replay updates: learning rates, and the number of the step. Made while
// the step is captured. The optimizer and its parts outlive the graph.
class CapturedStep {
 public:
  // `left_out`: where the device may skip the step of `parameters`; otherwise null.
  CapturedStep(torch::optim::Optimizer& optimizer, FlatGroups& flat, const StateKind& kind,
               LeftOutSteps* left_out, std::vector<at::Tensor> parameters, at::Device device);

  // Called before the first step is counted.
  static void join(const std::shared_ptr<CapturedStep>& self, device::Capture& capture);

  // One float32 each, on the device, valid in the graph's replays.
  at::Tensor learning_rate(size_t group);
  at::Tensor step_of(const at::Tensor& parameter);
  bool leaves_out() const { return left_out_ != nullptr; }

  // The parameter has been counted as taking this step.
  void takes(const at::Tensor& parameter, int64_t step);
  // Loaded state is copied to the graph's memory, once, before the first replay.
  void bring_home(at::Tensor& held, const at::Tensor& view);

 private:
  struct Moved {
    at::Tensor* held;  // valid during the capture
    at::Tensor from, to;
  };

  at::Tensor add(std::function<double()> now);
  void before(bool first);
  void undo();
  // For the parameters that take the step.
  void count_steps(int64_t by);
  // Checks that only learning rates have changed.
  void check_settings();
  // Checks that parameters with the same step number at the capture still have the same.
  void check_steps() const;
  // Copies loaded state to the graph's memory.
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

}  // namespace lockstep::inline v0::optim::internal
