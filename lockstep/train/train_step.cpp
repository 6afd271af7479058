#include "lockstep/train/train_step.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/train/step_clock.h"
#include "lockstep/train/step_trace.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

// How much the batches of a step count.
class Shares {
 public:
  // `counts`: samples or targets of each batch. `average`: what a batch of all ranks has on the
  // average.
  Shares(const std::vector<int64_t>& counts, double average) : counts_(counts), average_(average) {}

  // The loss whose gradient the batch adds to the step's. One that is a mean over nothing adds
  // none: its own may be no number (0 / 0), so the backward, which other ranks wait for, begins at
  // the logits where there are any.
  at::Tensor weighed(size_t batch, const LossOutput& output) const {
    const int64_t count = counts_[batch];
    if (count == 0) {
      const bool begins = output.logits.defined() && output.logits.requires_grad();
      return (begins ? output.logits.sum() : output.loss).mul(0);
    }
    const double divisor = average_ / static_cast<double>(count);
    return divisor == 1 ? output.loss : output.loss.div(divisor);
  }

 private:
  const std::vector<int64_t>& counts_;
  double average_;
};

}  // namespace

TrainStep::TrainStep(Parts parts, int64_t batches)
    : parts_(std::move(parts)),
      logical_(parts_.run.strategy().traits().logical_ranks > 0),
      apart_(parts_.run.strategy().traits().trains_apart),
      batches_(batches),
      // Of logical ranks' batches the strategy takes the mean; others are added up.
      group_(logical_ ? batches_per_step(parts_.run.strategy(), parts_.run.comm())
                      : parts_.spec.step.accumulation),
      steps_per_epoch_(logical_ ? batches / group_ : (batches + group_ - 1) / group_),
      autocast_(autocast_of(parts_.spec.step.precision, parts_.run.device())),
      rates_(optim::rates_of(parts_.spec.step, run_steps(parts_.spec, steps_per_epoch_).all,
                             steps_per_epoch_)) {
  const optim::StepSpec& step = parts_.spec.step;
  check_step(parts_.run.strategy(), "TrainStep", step.accumulation,
             step.precision == optim::Precision::kFloat16);
}

int64_t TrainStep::batches_before(int64_t step_in_epoch) const {
  return std::min(batches_, step_in_epoch * group_);
}

int64_t TrainStep::batches_of(int64_t step_in_epoch) const {
  return batches_before(step_in_epoch + 1) - batches_before(step_in_epoch);
}

StepResult TrainStep::take(int64_t step, const Batches& batches) {
  ModelOnRanks& run = parts_.run;
  Strategy& strategy = run.strategy();
  StepClock clock(strategy, parts_.spec.loop.timeline.get());
  const bool measures = !std::exchange(counted_, true) && !run.goes_on();  // its memory
  const auto next = [&] { clock.data(batches.next); };
  run.optimizer().zero_grad();

  std::vector<int64_t> counts = batches.samples;
  std::optional<int64_t> all;
  if (const data::StepSampler* shares = parts_.dealt.shares) {
    const int64_t first = batches_before(step % steps_per_epoch_);
    if (!apart_) all = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t batch = first + static_cast<int64_t>(i);
      counts[i] = shares->own(batch);
      if (all) *all += shares->samples(batch);
    }
  }
  const std::vector<int64_t> own_samples = counts;
  if (batches.targets) {
    for (int64_t& count : counts) {
      next();
      if (count > 0) count = batches.targets();
    }
  }
  const auto own = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (batches.targets && !apart_) {
    const at::Tensor sum = at::full({1}, own, at::kLong);
    Communicator ranks = parts_.dealt.data_ranks;
    ranks.all_reduce(sum);
    all = sum.item<int64_t>();
  }
  const auto means = static_cast<double>(logical_ ? counts.size() : 1);
  const Shares shares(counts,
                      all ? static_cast<double>(*all) /
                                (static_cast<double>(parts_.dealt.data_ranks.size()) * means)
                          : static_cast<double>(own) / means);

  StepResult result;
  RunningLoss sum;
  std::optional<StepRecorder> recorder;
  if (measures) recorder.emplace(strategy.gradients());
  for (size_t i = 0; i < counts.size(); ++i) {
    if (recorder) recorder->leave_out(true);
    if (!batches.targets) next();
    if (recorder) recorder->leave_out(false);
    std::optional<Accumulation> held;
    if (!logical_ && i + 1 < counts.size()) held.emplace(run.shared_strategy());
    LossOutput output;
    clock.backward([&] {
      strategy.gradients().compute(
          [&] {
            if (recorder) recorder->before_forward();
            output = clock.forward([&] { return batches.loss(i); });
            if (recorder) recorder->after_forward();
            return shares.weighed(i, output);
          },
          run.scaler());
    });
    if (recorder && i + 1 == counts.size()) recorder->after_gradients();
    sum.add(DeviceScalar(output.loss), counts[i]);
    // Ranks that work on one batch count it once.
    if (strategy.traits().counts_batches && own_samples[i] > 0)
      result.samples += parts_.counts_elements ? output.labels.numel() : output.labels.size(0);
  }
  if (recorder) result.memory = bytes_of(recorder->trace());
  recorder.reset();
  result.loss = sum.mean();
  if (batches.targets)
    result.targets = strategy.traits().counts_batches ? static_cast<int64_t>(sum.samples) : 0;
  optim::set_learning_rate(run.optimizer(), rates_(step));
  const double max_norm = parts_.spec.step.max_norm;
  std::optional<AllocationLog> log;
  if (measures) log.emplace();
  clock.optimizer([&] {
    run.step(result, {.max_norm = max_norm > 0 ? std::optional(max_norm) : std::nullopt,
                      .scaler = run.scaler(),
                      .reads_norm_later = true});
  });
  result.times = clock.times();
  if (log) result.memory = most_of(result.memory, bytes_of({.allocations = log->trace()}));
  return result;
}

Metrics TrainStep::figures(int64_t step) {
  return update_figures(parts_.run.strategy(), rates_(step - 1));
}

StepPlan TrainStep::plan(std::vector<int64_t> order, int64_t batch_size, int64_t limit,
                         const Forward& forward) {
  Strategy& strategy = parts_.run.strategy();
  int64_t samples = std::min(batch_size, static_cast<int64_t>(order.size()));
  // All ranks try the same, as their computations may communicate.
  if (parts_.dealt.shares != nullptr) samples = parts_.dealt.shares->largest();
  while (static_cast<int64_t>(order.size()) < samples) order.push_back(order.back());
  const auto tried = [&](int64_t n) {
    const auto run = forward(std::span(order).first(static_cast<size_t>(n)));
    const auto loss = [&] {
      const auto output = std::make_shared<LossOutput>(run());
      // Divided as a batch's share of a step is.
      return StrategyGradients::TriedLoss{.loss = output->loss.div(1), .kept = output};
    };
    return strategy.gradients().tried(loss, /*after_another=*/!logical_ && group_ > 1);
  };
  const auto any = [&](bool here) {
    const at::Tensor said = at::full({1}, here ? 1 : 0, at::kLong);
    parts_.run.comm().all_reduce(said, ReduceOp::kMax);
    return said.item<int64_t>() != 0;
  };
  return plan_step(parts_.run.model(), samples, tried,
                   {.limit = limit, .micro_batches = strategy.traits().micro_batches, .any = any});
}

}  // namespace lockstep::inline v0
