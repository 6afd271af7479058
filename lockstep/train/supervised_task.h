// SupervisedTask: a TrainTask from a model, an optimizer and a loader of labelled batches.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/data/loader.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/evaluation_pass.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_step.h"

namespace lockstep::inline v0 {

// Computes `loss(model, batch)` under these settings.
template <typename Loss, typename Model, typename Batch>
LossOutput loss_under(const std::optional<amp::AutocastSettings>& settings, Loss& loss,
                      Model& model, const Batch& batch) {
  std::optional<amp::Autocast> autocast;
  if (settings) autocast.emplace(*settings);
  return loss(model, batch);
}

// M is a module holder, D a data set. Loss is called as loss(model, batch), where model(...) is the
// model's forward, and returns LossOutput (text_loss.h); it may count targets (CountsTargets).
// Requires: whatever it refers to outlives the task.
// Thread-safety: one thread, the communicator's.
template <typename M, data::Dataset D, typename Loss>
class SupervisedTask {
  using Batch = data::BatchOf<D>;

 public:
  // The constructor's arguments.
  struct Parts {
    StrategyModel<M>& model;
    data::Loader<D>& loader;
    Loss& loss;
    TrainStep::Parts step;                    // `run`: of that model and its strategy
    std::function<Metrics(M&)> figures = {};  // further figures of a log, on all ranks
  };

  explicit SupervisedTask(Parts parts)
      : parts_(std::move(parts)), step_(parts_.step, parts_.loader.batches()) {
    parts_.model.strategy().gradients().follow(parts_.loader.batches_taken());
  }
  SupervisedTask(const SupervisedTask&) = delete;
  SupervisedTask& operator=(const SupervisedTask&) = delete;

  // Valid as long as this object. `evaluate` may be empty.
  TrainTask task(std::function<Evaluation()> evaluate) {
    return {.steps_per_epoch = step_.steps_per_epoch(),
            .begin_epoch = [this](int64_t epoch,
                                  int64_t first_step) { begin_epoch(epoch, first_step); },
            .step = [this] { return step(); },
            .evaluate = std::move(evaluate),
            .figures =
                [this](int64_t step) {
                  Metrics figures = step_.figures(step);
                  if (!parts_.figures) return figures;
                  const Metrics more = parts_.figures(parts_.model.module());
                  figures.insert(figures.end(), more.begin(), more.end());
                  return figures;
                }};
  }

  // TrainStep::plan() with the sampler's first samples.
  StepPlan plan(int64_t limit = INT64_MAX) {
    return step_.plan(parts_.loader.sampler().indices(), parts_.loader.options().batch_size, limit,
                      [this](std::span<const int64_t> samples) {
                        return [this, batch = parts_.loader.gather(samples)] {
                          return loss_under(step_.autocast(), parts_.loss, parts_.model, batch);
                        };
                      });
  }

 private:
  void begin_epoch(int64_t epoch, int64_t first_step) {
    batches_.reset();
    parts_.loader.sampler().set_epoch(epoch);
    parts_.loader.skip(step_.batches_before(first_step));
    batches_.emplace(parts_.loader.begin());
    first_ = true;
    at_ = epoch * step_.steps_per_epoch() + first_step;
    parts_.model.module()->train();
  }

  StepResult step() {
    const int64_t in_epoch = at_ % step_.steps_per_epoch();
    std::vector<Batch> held;
    TrainStep::Batches batches{.samples = {},
                               .next =
                                   [&] {
                                     if (!std::exchange(first_, false)) ++*batches_;
                                     if constexpr (CountsTargets<Loss, Batch>)
                                       held.push_back(std::move(**batches_));
                                   },
                               .loss =
                                   [&](size_t i) {
                                     return loss_under(step_.autocast(), parts_.loss, parts_.model,
                                                       held.empty() ? **batches_ : held[i]);
                                   }};
    for (int64_t i = 0; i < step_.batches_of(in_epoch); ++i)
      batches.samples.push_back(parts_.loader.samples(step_.batches_before(in_epoch) + i));
    if constexpr (CountsTargets<Loss, Batch>)
      batches.targets = [&] { return parts_.loss.targets(held.back()); };
    return step_.take(at_++, batches);
  }

  Parts parts_;
  TrainStep step_;
  int64_t at_ = 0;  // the next step, of the run
  std::optional<typename data::Loader<D>::Iterator> batches_;
  bool first_ = false;  // batches_ is at a batch that was not used yet
};

// Evaluates a classifier whose forward(input) returns log-probabilities [B, classes]. Each rank
// evaluates its part of `dataset`, and the sums are added. The model computes in evaluation mode
// with rank 0's buffers (BatchNorm's running statistics), which are the saved ones. Afterwards it
// has its former mode.
// Collective: all ranks.
template <typename M, data::Dataset D>
Evaluation evaluate_classifier(M& model, const D& dataset, Communicator& comm, int64_t classes,
                               int64_t batch_size) {
  share_buffers(model, comm);
  ClassifierCounts counts(classes);
  evaluate_batches(model, dataset, comm, batch_size, {},
                   [&](auto& batch) { counts.add(model->forward(batch.input), batch.target); });
  return counts.reduce(comm);
}

}  // namespace lockstep::inline v0
