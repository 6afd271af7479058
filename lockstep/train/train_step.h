// TrainStep: a step of the optimizer, from the losses of its batches to the update, for any model
// and data set. SupervisedTask (supervised_task.h) gives it the batches of a loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/export.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/step_plan.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {

// Requires: whatever it refers to outlives it.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API TrainStep {
 public:
  // The parts of which a step is made.
  struct Parts {
    ModelOnRanks& run;
    const TrainSpec& spec;
    const DealtSamples& dealt;  // by which the loader has its samples
    // StepResult::samples counts the labels' elements, such as tokens, instead of their rows.
    bool counts_elements = false;
  };

  // The batches of a step on this rank, in order. Their losses are means over unequal numbers of
  // samples or targets. The step's gradient is one mean over all of these, in all batches on all
  // ranks; where ranks train apart, on this rank.
  struct Batches {
    std::vector<int64_t> samples;  // of each
    std::function<void()> next;    // takes the next one, which is valid until the one after it
    // The targets of the batch taken last, if a loss is a mean over targets (CountsTargets). All
    // batches of the step are then taken before the first forward, and are valid until its end.
    std::function<int64_t()> targets = {};
    // Runs the forward of the batch with this index.
    std::function<LossOutput(size_t index)> loss;
  };

  // `batches`: of the loader's epoch.
  // Throws: InvalidArgument as check_step().
  TrainStep(Parts parts, int64_t batches);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }  // of the optimizer
  // The number of an epoch's batches before this step, and of those in the step.
  int64_t batches_before(int64_t step_in_epoch) const;
  int64_t batches_of(int64_t step_in_epoch) const;

  // Takes the step-th step of the run.
  // Collective: all ranks.
  StepResult take(int64_t step, const Batches& batches);
  // TrainTask's.
  Metrics figures(int64_t step);

  // Plans what a batch's forward and backward will take (step_plan.h). The batch has the first
  // `batch_size` samples of `order`. `forward` makes a batch of given samples, and returns a function
  // that runs its forward. `limit`: as in plan_step(), the same on all ranks.
  // Collective: all ranks.
  using Forward = std::function<std::function<LossOutput()>(std::span<const int64_t> samples)>;
  StepPlan plan(std::vector<int64_t> order, int64_t batch_size, int64_t limit,
                const Forward& forward);

  // Under which forward and loss compute.
  const std::optional<amp::AutocastSettings>& autocast() const { return autocast_; }

 private:
  Parts parts_;
  bool logical_;
  bool apart_;
  int64_t batches_, group_, steps_per_epoch_;
  std::optional<amp::AutocastSettings> autocast_;
  std::function<double(int64_t)> rates_;
  bool counted_ = false;  // a step's memory
};

}  // namespace lockstep::inline v0
