// A step of any of the fused optimizers: what is the same for all of them.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/internal/flat_groups.h"

namespace lockstep::optim::internal {

// Parameters of one group, dtype and device, as lists for one kernel call: stretches of flat memory
// that their gradients divide them into.
struct Launch {
  const torch::optim::OptimizerOptions* options = nullptr;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;           // the first of each stretch, in its own shape
  std::vector<std::vector<at::Tensor>> states;  // by kind of state, then as weights
  std::vector<at::Tensor> steps;                // one float32 each: this step's number, from 1
  bool first = false;                           // states hold nothing yet
  at::Tensor learning_rate;                     // in place of the options', where it is defined
  std::optional<at::Tensor> divisor;            // of the gradients, one float32
  std::optional<at::Tensor> found_inf;          // one float32: 1 leaves the step out
};

// How a kind of optimizer keeps its state in torch's objects.
class StateKind {
 public:
  virtual ~StateKind() = default;
  virtual size_t count(const torch::optim::OptimizerOptions& options) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make() const = 0;
  // A reference into the state's object.
  virtual at::Tensor& tensor(torch::optim::OptimizerParamState& state, size_t which) const = 0;
  // Steps done, where they are counted.
  virtual int64_t steps(const torch::optim::OptimizerParamState&) const { return 0; }
  virtual void set_steps(torch::optim::OptimizerParamState&, int64_t) const {}
  virtual bool counts_steps() const { return false; }
};

// Of an optimizer: steps that are counted, and that its device may have left out.
class LeftOutSteps {
 public:
  bool any() const { return pending_ || held_; }
  // Whether there is a count, though it may be settled: what a graph adds to is made before.
  bool made() const { return count_.defined(); }
  const at::Tensor& count() const { return count_; }  // one float32 on the device
  bool are_of(const std::vector<at::Tensor>& parameters) const;
  // Of a step of these parameters; of the same ones until settle().
  void add(const at::Tensor& found_inf, std::vector<at::Tensor> parameters, const StateKind& kind);
  // A graph adds to them: their memory stays.
  void hold() { held_ = true; }
  // What is added from now on is of these parameters. Settles what is of others.
  void set_of(const torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
              const StateKind& kind);
  // Takes them back from the state's counts. Waits for the device if there are any.
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
  bool takes_found_inf = true;  // the kernel looks at Launch::found_inf
  bool in_graphs = false;  // the kernel looks at Launch::learning_rate, so that it can be captured
};

// A parameter's state, in the block's buffers: made, or taken in where it came from a file or from
// torch's own optimizer.
struct Ready {
  torch::optim::OptimizerParamState* state;
  bool first;
};
class CapturedStep;
Ready ready_state(torch::optim::Optimizer& optimizer, const StateKind& kind, Block& block,
                  Slot& slot, size_t count, CapturedStep* captured = nullptr);

// `optimizer` is the one that the others were made for; `kind` outlives it. Calls `kernel` for every launch, without
// gradients being recorded.
StepResult fused_step(torch::optim::Optimizer& optimizer, FlatGroups& flat, LeftOutSteps& left_out,
                      const StateKind& kind, const StepOptions& options,
                      const std::function<void(Launch&)>& kernel, EngineOptions engine = {});

// torch's step(closure): the closure's loss, under enabled gradients, then `step`.
at::Tensor step_with_closure(const torch::optim::Optimizer::LossClosure& closure,
                             const std::function<void()>& step);

}  // namespace lockstep::optim::internal
