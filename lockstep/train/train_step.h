// TrainStep: a step of the optimizer, from the losses of its batches to the update. The same for
// every model and data set; SupervisedTask (supervised_task.h) gives it the batches of a loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/step_sampler.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"

namespace lockstep {

// All that is referred to must outlive it. One thread, the communicator's.
class TrainStep {
 public:
  struct Parts {
    ModelOnRanks& run;
    Communicator data_ranks;  // StrategyPlacement::data_ranks(): those whose gradients are averaged
    const TrainSpec& spec;
    // The sampler, where ranks share a step's samples unequally; the loader's batches are then of
    // its batch_size().
    const data::StepSampler* shares = nullptr;
    // StepResult::samples are the labels' elements, such as tokens, and not their rows.
    bool counts_elements = false;
  };

  // The batches of a step on this rank, in order. Their losses are means over unequal numbers of
  // samples or targets: over these all batches, micro-batches and ranks', the step's gradient is
  // one mean.
  struct Batches {
    std::vector<int64_t> samples;  // of each
    std::function<void()> next;    // takes the following one, valid until the one after it
    // Where a loss is a mean over targets (CountsTargets): of the batch taken last. All batches of
    // the step are then taken before the first forward, and are valid until its end.
    std::function<int64_t()> targets = {};
    // The forward of the batch with this index.
    std::function<LossOutput(size_t index)> loss;
  };

  // Of a loader with so many batches an epoch.
  // Throws: InvalidArgument for accumulation where a step has one batch of a rank as it is:
  // check_step(), and with `shares`.
  TrainStep(Parts parts, int64_t batches);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Batches of an epoch that come before this step of it, and those of the step.
  int64_t batches_before(int64_t step_in_epoch) const;
  int64_t batches_of(int64_t step_in_epoch) const;

  // Takes the step-th step of the run. Collective.
  StepResult take(int64_t step, const Batches& batches);
  // TrainTask's.
  Metrics figures(int64_t step);

  // What the forward of a batch will leave for its backward (activation_plan.h): of `batch_size`
  // samples, the first of `order`. `forward` makes a batch of those samples, and gives what runs
  // its forward and keeps its graph. `limit`: plan_activations()'s, the same on all ranks.
  // Collective; under StrategyPlacement::whole_parameters().
  using Forward =
      std::function<std::function<std::shared_ptr<void>()>(std::span<const int64_t> samples)>;
  int64_t plan_activations(std::vector<int64_t> order, int64_t batch_size, int64_t limit,
                           const Forward& forward);

  // Under which forward and loss compute.
  const std::optional<amp::AutocastSettings>& autocast() const { return autocast_; }

 private:
  Parts parts_;
  bool logical_;
  int64_t batches_, group_, steps_per_epoch_;
  std::optional<amp::AutocastSettings> autocast_;
  std::function<double(int64_t)> rates_;
  bool counted_ = false;  // a forward's memory
};

}  // namespace lockstep
