// The common part of a step of all fused optimizers.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/internal/flat_groups.h"

namespace lockstep::inline v0::optim::internal {

// Parameters of one group, dtype and device, as lists for one kernel call: the stretches of flat
// memory into which their gradients divide them.
struct Launch {
  const torch::optim::OptimizerOptions* options = nullptr;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;           // the first of each stretch, in its own shape
  std::vector<std::vector<at::Tensor>> states;  // by kind of state, flat like the weights
  std::vector<at::Tensor> steps;                // one float32 each: this step's number, from 1
  bool first = false;                           // states hold nothing yet
  at::Tensor learning_rate;                     // replaces the options', where it is defined
  std::optional<at::Tensor> divisor;            // for the gradients, one float32
  std::optional<at::Tensor> found_inf;          // one float32: 1 skips the step
};

// How a kind of optimizer keeps its state in torch's objects.
class StateKind {
 public:
  virtual ~StateKind() = default;
  virtual size_t count(const torch::optim::OptimizerOptions& options) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make() const = 0;
  // A reference into the state's object.
  virtual at::Tensor& tensor(torch::optim::OptimizerParamState& state, size_t which) const = 0;
  // The number of steps, where they are counted.
  virtual int64_t steps(const torch::optim::OptimizerParamState&) const { return 0; }
  virtual void set_steps(torch::optim::OptimizerParamState&, int64_t) const {}
  virtual bool counts_steps() const { return false; }
};

// The steps of an optimizer that are counted but that its device may have skipped.
class LeftOutSteps {
 public:
  bool any() const { return pending_ || held_; }
  // Whether there is a count, even if it is settled: a graph adds to it, so it is made before.
  bool made() const { return count_.defined(); }
  const at::Tensor& count() const { return count_; }  // one float32 on the device
  bool are_of(const std::vector<at::Tensor>& parameters) const;
  // Adds a step of these parameters, the same ones until settle().
  void add(const at::Tensor& found_inf, std::vector<at::Tensor> parameters, const StateKind& kind);
  // A graph adds to the count: its memory stays.
  void hold() { held_ = true; }
  // Later additions are for these parameters. Settles those of others.
  void set_of(const torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
              const StateKind& kind);
  // Subtracts them from the state's counts. Waits for the device if there are any.
  void settle(const torch::optim::Optimizer& optimizer);

 private:
  at::Tensor count_;
  std::vector<at::Tensor> parameters_;
  const StateKind* kind_ = nullptr;
  bool pending_ = false;
  bool held_ = false;
};

struct EngineOptions {
  bool one_parameter_a_stretch = false;
  bool takes_found_inf = true;  // the kernel reads Launch::found_inf
  bool in_graphs = false;  // the kernel reads Launch::learning_rate, so that it can be captured
};

// A parameter's state, in the block's buffers: made anew, or taken over from a file or from torch's
// own optimizer.
struct Ready {
  torch::optim::OptimizerParamState* state;
  bool first;
};
class CapturedStep;
Ready ready_state(torch::optim::Optimizer& optimizer, const StateKind& kind, Block& block,
                  Slot& slot, size_t count, CapturedStep* captured = nullptr);

// `optimizer` is the one for which the others were made; `kind` outlives it. Calls `kernel` for
// every launch, without recording gradients.
StepResult fused_step(torch::optim::Optimizer& optimizer, FlatGroups& flat, LeftOutSteps& left_out,
                      const StateKind& kind, const StepOptions& options,
                      const std::function<void(Launch&)>& kernel, EngineOptions engine = {});

// torch's step(closure): the closure's loss, with gradients enabled, then `step`.
at::Tensor step_with_closure(const torch::optim::Optimizer::LossClosure& closure,
                             const std::function<void()>& step);

}  // namespace lockstep::inline v0::optim::internal
