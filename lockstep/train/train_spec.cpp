#include "lockstep/train/train_spec.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/data/length_grouped_sampler.h"
#include "lockstep/data/partition.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

RunSteps run_steps(const TrainSpec& spec, int64_t per_epoch) {
  if (spec.max_steps_alone && spec.loop.max_steps > 0)
    return {.per_epoch = per_epoch, .all = spec.loop.max_steps};
  return {.per_epoch = per_epoch,
          .all = static_cast<int64_t>(std::ceil(spec.epochs * static_cast<double>(per_epoch)))};
}

TrainLoopOptions loop_options(const TrainSpec& spec, int64_t steps_per_epoch) {
  const int64_t all = run_steps(spec, steps_per_epoch).all;
  const int64_t per_epoch = std::max<int64_t>(steps_per_epoch, 1);
  TrainLoopOptions options = spec.loop;
  options.epochs = (all + per_epoch - 1) / per_epoch;
  if (spec.max_steps_alone) options.max_steps = all;
  return options;
}

void check_ema(double ema, bool ema_buffers) {
  if (ema_buffers && ema == 0)
    throw InvalidArgument("ema_buffers is true, and there is no average; give ema, too");
}

void check_trace(const std::string& steps, bool operators, bool nvtx) {
  if (!steps.empty()) (void)parse_trace_steps(steps, "trace_steps");
  if (operators && steps.empty())
    throw InvalidArgument("trace_operators is on, and no steps are traced; give trace_steps, too");
  Timeline::check({.nvtx = nvtx});
}

void add_trace(TrainLoopOptions& loop, const std::string& steps, bool operators, bool nvtx,
               const std::filesystem::path& file) {
  if (steps.empty() && !nvtx) return;
  loop.timeline = std::make_shared<Timeline>(TimelineOptions{.operators = operators, .nvtx = nvtx});
  if (steps.empty()) return;
  loop.trace_steps = parse_trace_steps(steps, "trace_steps");
  loop.trace_file = file;
}

std::optional<amp::AutocastSettings> autocast_of(optim::Precision precision, at::Device device) {
  if (precision == optim::Precision::kFloat32) return std::nullopt;
  return amp::AutocastSettings{
      .device = device.type(),
      .dtype = precision == optim::Precision::kBFloat16 ? at::kBFloat16 : at::kHalf};
}

StepShares shares_of_step(int64_t samples, int64_t ranks) {
  return {.largest = (samples - 1) / ranks + 1, .step_samples = samples % ranks == 0 ? 0 : samples};
}

TrainSpec::Data dealt_anew(TrainSpec::Data data, const Strategy& strategy, int before, int now) {
  if (before == now || strategy.traits().logical_ranks > 0) return data;  // whose batches stay
  const int64_t samples = data.step_samples > 0 ? data.step_samples : data.batch_size * before;
  const StepShares shares = shares_of_step(samples, now);
  if (shares.step_samples > 0 && (data.fixed_parts || data.group_by_length))
    throw InvalidArgument("a step has " + std::to_string(samples) + " samples, which the " +
                          std::to_string(now) + " ranks that are left cannot share equally, as " +
                          (data.fixed_parts ? "fixed parts of the data" : "group_by_length") +
                          " need; start again with another number of ranks");
  data.batch_size = shares.largest;
  data.step_samples = shares.step_samples;
  return data;
}

DealtSamples deal(const TrainSpec::Data& spec, int64_t size, const Strategy& strategy,
                  const Communicator& comm, const std::function<std::vector<int64_t>()>& lengths) {
  DealtSamples dealt{.data_ranks = strategy.placement().data_ranks(comm),
                     .batch_size = spec.batch_size};
  const Communicator& ranks = dealt.data_ranks;
  const data::DistributedSamplerOptions options{.seed = spec.seed};
  if (spec.step_samples > 0) {
    auto sampler = std::make_unique<data::StepSampler>(size, ranks.size(), ranks.rank(),
                                                       spec.step_samples, options);
    dealt.batch_size = sampler->batch_size();
    dealt.shares = sampler.get();
    dealt.sampler = std::move(sampler);
  } else if (spec.fixed_parts) {
    const auto parts = data::DataPartitioner::equal(size, ranks.size(), spec.seed);
    dealt.sampler = std::make_unique<data::SubsetSampler>(
        parts.use(ranks.rank()), data::SubsetSamplerOptions{.seed = spec.seed});
  } else if (spec.group_by_length) {
    if (!lengths) throw InvalidArgument("group_by_length: the data set has no lengths()");
    dealt.sampler = std::make_unique<data::LengthGroupedSampler>(
        lengths(), ranks,
        data::LengthGroupedSamplerOptions{.batch_size = spec.batch_size * ranks.size(),
                                          .seed = spec.seed});
  } else if (strategy.traits().logical_ranks > 0) {  // which take several batches a step
    const int64_t own = batches_per_step(strategy, comm);
    dealt.sampler = std::make_unique<data::LogicalSampler>(
        size, strategy.traits().logical_ranks, comm.rank() * own, own, spec.batch_size, options);
  } else {
    dealt.sampler = std::make_unique<data::DistributedSampler>(size, ranks, options);
  }
  return dealt;
}

data::LoaderOptions loader_options(const TrainSpec::Data& spec, const DealtSamples& dealt,
                                   at::Device device) {
  return {.batch_size = dealt.batch_size,
          .num_workers = static_cast<int>(spec.workers),
          .drop_last = spec.drop_last,
          .device = device};
}

}  // namespace lockstep::inline v0
