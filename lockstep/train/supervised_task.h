// SupervisedTask: a TrainTask from a model, an optimizer and a loader of labelled batches.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/step_sampler.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/train/activation_plan.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/step_batches.h"
#include "lockstep/train/step_clock.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// M is a module holder, D a data set; Loss is called as loss(model, batch), where model(...) is the
// model's forward, and gives LossOutput (text_loss.h); it may count targets (CountsTargets). All that is referred to must outlive the
// task. One thread, the communicator's.
template <typename M, data::Dataset D, typename Loss>
class SupervisedTask {
 public:
  struct Parts {
    StrategyModel<M>& model;
    ModelOnRanks& run;  // of that model and its strategy
    data::Sampler& sampler;
    data::Loader<D>& loader;
    Loss loss = {};
    // The rate for the step that is the step-th of the run (from 0), whether resumed or not; empty:
    // the optimizer's own throughout.
    std::function<double(int64_t step)> learning_rate = {};
    std::optional<amp::AutocastSettings> autocast = {};  // under which forward and loss compute
    std::optional<double> max_norm = {};                 // the gradients' global one, at most
    // The sampler, where ranks share a step's samples unequally; the loader's batches are then of its batch_size().
    const data::StepSampler* shares = nullptr;
  };

  explicit SupervisedTask(Parts parts)
      : parts_(std::move(parts)),
        batches_per_step_(batches_per_step(strategy(), parts_.run.comm())),
        first_rate_(parts_.run.optimizer().param_groups().front().options().get_lr()),
        data_ranks_(CountsTargets<Loss, data::BatchOf<D>> || parts_.shares != nullptr
                        ? strategy().data_ranks(parts_.run.comm())
                        : parts_.run.comm()) {
    strategy().follow(parts_.loader.batches_taken());
  }
  SupervisedTask(const SupervisedTask&) = delete;
  SupervisedTask& operator=(const SupervisedTask&) = delete;

  // Valid as long as this object. `evaluate` may be empty.
  TrainTask task(const std::function<Evaluation()>& evaluate) {
    return {.steps_per_epoch = steps_per_epoch(),
            .begin_epoch = [this](int64_t epoch,
                                  int64_t first_step) { begin_epoch(epoch, first_step); },
            .step = [this] { return step(); },
            .evaluate = evaluate,
            .figures =
                [this](int64_t step) {
                  return update_figures(strategy(), parts_.learning_rate
                                                        ? parts_.learning_rate(step - 1)
                                                        : first_rate_);
                }};
  }

  int64_t steps_per_epoch() const { return parts_.loader.batches() / batches_per_step_; }

  // What the forward of a batch will leave for its backward (activation_plan.h), as far as the sampler's
  // first samples tell it. `limit`: plan_activations()'s, the same on all ranks. Collective; under
  // Strategy::whole_parameters().
  int64_t plan_activations(int64_t limit = INT64_MAX) {
    std::vector<int64_t> order = parts_.sampler.indices();
    int64_t samples =
        std::min(parts_.loader.options().batch_size, static_cast<int64_t>(order.size()));
    // All ranks try the same, as their forwards may communicate.
    if (parts_.shares != nullptr) samples = parts_.shares->largest();
    while (static_cast<int64_t>(order.size()) < samples) order.push_back(order.back());
    const auto left = [&](int64_t n) {
      const data::BatchOf<D> batch =
          parts_.loader.gather(std::span(order).first(static_cast<size_t>(n)));
      return strategy().bytes_left(
          [&] { return std::make_shared<LossOutput>(compute_loss(parts_.model.module(), batch)); });
    };
    const auto any = [&](bool here) {
      const at::Tensor said = at::full({1}, here ? 1 : 0, at::kLong);
      parts_.run.comm().all_reduce(said, ReduceOp::kMax);
      return said.item<int64_t>() != 0;
    };
    return lockstep::plan_activations(
        *parts_.model.module(), samples, left,
        {.limit = limit, .micro_batches = strategy().micro_batches(), .any = any});
  }

 private:
  void begin_epoch(int64_t epoch, int64_t first_step) {
    batches_.reset();
    parts_.sampler.set_epoch(epoch);
    parts_.loader.skip(first_step * batches_per_step_);
    batches_.emplace(parts_.loader.begin());
    first_ = true;
    step_ = epoch * steps_per_epoch() + first_step;
    parts_.model.module()->train();
  }

  StepResult step() {
    StepClock clock(strategy(), !std::exchange(counted_, true));
    if (parts_.learning_rate)
      optim::set_learning_rate(parts_.run.optimizer(), parts_.learning_rate(step_));
    const int64_t in_epoch = step_++ % steps_per_epoch();
    parts_.run.optimizer().zero_grad();
    StepResult result;
    RunningLoss loss;
    const auto next = [&]() -> data::BatchOf<D>& {
      clock.data([&] {
        if (!std::exchange(first_, false)) ++*batches_;
      });
      return **batches_;
    };
    // Without targets they count alike: a step of several takes whole batches (LogicalSampler).
    std::vector<int64_t> samples(static_cast<size_t>(batches_per_step_), 1);
    std::optional<int64_t> own, all;
    if (parts_.shares != nullptr) {
      own = parts_.shares->own(in_epoch);
      all = parts_.shares->samples(in_epoch);
      samples = {*own};
    }
    StepBatches<data::BatchOf<D>, Loss, decltype(next)> batches(
        parts_.loss, next, std::move(samples), data_ranks_, batches_per_step_, all);
    while (batches.next()) {
      const LossOutput output =
          clock.forward([&] { return compute_loss(parts_.model, batches.batch()); });
      clock.backward([&] { strategy().backward(batches.weighed(output)); });
      loss.add(DeviceScalar(output.loss), batches.counted());
      if (strategy().counts_batches() && own != 0) result.samples += output.labels.numel();
    }
    result.loss = loss.mean();
    if constexpr (CountsTargets<Loss, data::BatchOf<D>>)
      result.targets = strategy().counts_batches() ? static_cast<int64_t>(loss.samples) : 0;
    clock.optimizer(
        [&] { parts_.run.step(result, {.max_norm = parts_.max_norm, .reads_norm_later = true}); });
    result.times = clock.times();
    result.activations = clock.activations();
    return result;
  }

  template <typename Model>
  LossOutput compute_loss(Model& model, const data::BatchOf<D>& batch) {
    std::optional<amp::Autocast> autocast;
    if (parts_.autocast) autocast.emplace(*parts_.autocast);
    return parts_.loss(model, batch);
  }

  Strategy& strategy() { return parts_.model.strategy(); }

  Parts parts_;
  int64_t batches_per_step_;
  double first_rate_;        // where no other is given
  Communicator data_ranks_;  // that have data of their own, where batches count unequally
  int64_t step_ = 0;         // the next one, of the run
  std::optional<typename data::Loader<D>::Iterator> batches_;
  bool first_ = false;
  bool counted_ = false;  // a forward's memory
};

// Evaluates a classifier whose forward(input) gives log-probabilities [B, classes]: this rank's
// part of `dataset`, then all ranks' sums. Collective. In evaluation mode and without gradients, with rank 0's
// buffers (BatchNorm's running statistics), which are those that are saved; afterwards in the mode it was found in.
template <typename M, data::Dataset D>
Evaluation evaluate_classifier(M& model, const D& dataset, Communicator& comm, int64_t classes,
                               int64_t batch_size) {
  const at::NoGradGuard no_grad;
  share_buffers(model, comm);
  const bool training = model->is_training();
  model->eval();
  ClassifierCounts counts(classes);
  data::ShardedSequentialSampler sampler(dataset.size(), comm);
  if (sampler.size() > 0) {
    data::Loader<D> loader(dataset, sampler,
                           {.batch_size = batch_size, .device = device_of(*model)});
    for (auto& batch : loader) counts.add(model->forward(batch.input), batch.target);
  }
  model->train(training);
  return counts.reduce(comm);
}

}  // namespace lockstep
