#include "lockstep/plan/pipeline_timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/plan/pipeline_check.h"

namespace lockstep::inline v0 {
namespace {

void check(const PipelineTimes& times) {
  const double all[] = {times.forward, times.backward_input, times.backward_weight,
                        times.communication};
  const bool good = std::all_of(std::begin(all), std::end(all),
                                [](double time) { return std::isfinite(time) && time >= 0; }) &&
                    times.forward + times.backward_input + times.backward_weight > 0;
  if (!good)
    throw InvalidArgument(
        "pipeline times: give finite ones, none of them negative, not all of them 0");
}

double duration_of(PipelineWork work, const PipelineTimes& times) {
  switch (work) {
    case PipelineWork::kForward:
      return times.forward;
    case PipelineWork::kBackward:
      return times.backward_input + times.backward_weight;
    case PipelineWork::kBackwardInput:
      return times.backward_input;
    case PipelineWork::kBackwardWeight:
      return times.backward_weight;
  }
  return 0;
}

double waited_inside(const std::vector<TimedAction>& actions) {
  double busy = 0;
  for (const TimedAction& timed : actions) busy += timed.end - timed.start;
  return actions.empty() ? 0 : actions.back().end - actions.front().start - busy;
}

// When each chunk has given its output of each micro-batch to the next one, and the gradient of its input to
// the one before; below 0: not yet.
class Given {
 public:
  explicit Given(const PipelineSchedule& schedule)
      : micro_batches_(static_cast<size_t>(schedule.micro_batches)),
        when_(2 * static_cast<size_t>(schedule.all_chunks()) * micro_batches_, -1) {}
  double& at(const PipelineMessage& message) {
    const size_t way = message.forward() ? 0 : 1;
    return when_[(2 * static_cast<size_t>(message.from) + way) * micro_batches_ +
                 static_cast<size_t>(message.micro_batch)];
  }

 private:
  size_t micro_batches_;
  std::vector<double> when_;
};

// When the message that an action of `stage` waits for is there: 0 where it waits for none, nothing where it was not sent yet.
std::optional<double> arrival_of(const PipelineAction& action, size_t stage,
                                 const PipelineSchedule& schedule,
                                 std::span<const PipelineTimes> of_chunks, Given& given) {
  const auto message = received_by(schedule, action);
  if (!message) return 0;
  const double when = given.at(*message);
  if (when < 0) return std::nullopt;
  const auto from = static_cast<size_t>(message->from);
  const bool same = schedule.stage_of[from] == static_cast<int>(stage);
  return when + (same ? 0 : of_chunks[from].communication);
}

// An action takes the time of its chunk divided by `parts`.
PipelineTiming run(const PipelineSchedule& schedule, std::span<const PipelineTimes> of_chunks,
                   double parts) {
  PipelineTiming timing;
  timing.actions.resize(schedule.actions.size());
  for (size_t stage = 0; stage < schedule.actions.size(); ++stage)
    timing.actions[stage].reserve(schedule.actions[stage].size());
  Given given(schedule);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t stage = 0; stage < schedule.actions.size(); ++stage) {
      auto& done = timing.actions[stage];
      while (done.size() < schedule.actions[stage].size()) {
        const PipelineAction& action = schedule.actions[stage][done.size()];
        const auto arrival = arrival_of(action, stage, schedule, of_chunks, given);
        if (!arrival) break;
        const double start = std::max(done.empty() ? 0 : done.back().end, *arrival);
        const double end =
            start + duration_of(action.work, of_chunks[static_cast<size_t>(action.chunk)]) / parts;
        if (const auto message = sent_by(schedule, action)) given.at(*message) = end;
        done.push_back({action, start, end});
        timing.makespan = std::max(timing.makespan, end);
        moved = true;
      }
    }
  }
  return timing;
}

// What each stage does at an instant, where stages share processors.
class SharedRun {
 public:
  SharedRun(const PipelineSchedule& schedule, std::span<const PipelineTimes> of_chunks,
            double processors)
      : schedule_(schedule),
        of_chunks_(of_chunks),
        processors_(processors),
        given_(schedule),
        left_(schedule.actions.size(), kWaits) {
    timing_.actions.resize(schedule.actions.size());
  }

  PipelineTiming run() {
    while (begin_actions()) pass();
    return std::move(timing_);
  }

 private:
  static constexpr double kWaits = -1;

  // Begins what can begin, and finds when the next message arrives. Whether anything is still to happen.
  bool begin_actions() {
    computing_ = 0;
    next_arrival_ = std::numeric_limits<double>::infinity();
    for (size_t stage = 0; stage < left_.size(); ++stage) {
      auto& done = timing_.actions[stage];
      const auto& all = schedule_.actions[stage];
      if (left_[stage] == kWaits && done.size() < all.size()) {
        const PipelineAction& action = all[done.size()];
        const auto arrival = arrival_of(action, stage, schedule_, of_chunks_, given_);
        if (arrival && *arrival <= now_) {
          done.push_back({action, now_, now_});
          left_[stage] = duration_of(action.work, of_chunks_[static_cast<size_t>(action.chunk)]);
        } else if (arrival) {
          next_arrival_ = std::min(next_arrival_, *arrival);
        }
      }
      if (left_[stage] != kWaits) ++computing_;
    }
    return computing_ > 0 || std::isfinite(next_arrival_);
  }

  // Goes on to the first instant at which an action ends or a message arrives.
  void pass() {
    const double share = computing_ > 0 ? std::min(1.0, processors_ / computing_) : 1;
    double least = (next_arrival_ - now_) * share;
    for (const double left : left_)
      if (left != kWaits) least = std::min(least, left);
    // An arrival is met exactly: added up, it might never be reached.
    now_ = std::min(next_arrival_, now_ + least / share);
    for (size_t stage = 0; stage < left_.size(); ++stage) {
      if (left_[stage] == kWaits) continue;
      left_[stage] -= least;
      if (left_[stage] > 0) continue;
      left_[stage] = kWaits;
      TimedAction& ended = timing_.actions[stage].back();
      ended.end = now_;
      timing_.makespan = now_;
      if (const auto message = sent_by(schedule_, ended.action)) given_.at(*message) = now_;
    }
  }

  const PipelineSchedule& schedule_;
  std::span<const PipelineTimes> of_chunks_;
  const double processors_;
  Given given_;
  std::vector<double> left_;  // of each stage's action, at full speed; or kWaits
  PipelineTiming timing_;
  double now_ = 0, next_arrival_ = 0;
  int computing_ = 0;
};

void finish(PipelineTiming& timing, const PipelineSchedule& schedule, double ideal) {
  for (size_t stage = 0; stage < schedule.actions.size(); ++stage)
    LOCKSTEP_CHECK(timing.actions[stage].size() == schedule.actions[stage].size(),
                   "a schedule to be timed has passed check_schedule()");
  timing.ideal = ideal;
  timing.bubble = (timing.makespan - timing.ideal) / timing.ideal;
  for (const auto& actions : timing.actions)
    timing.inner_bubble = std::max(timing.inner_bubble, waited_inside(actions) / timing.ideal);
}

}  // namespace

PipelineTiming time_of(const PipelineSchedule& schedule, const PipelineTimes& times) {
  check(times);
  const std::vector<PipelineTimes> alike(static_cast<size_t>(schedule.all_chunks()), times);
  PipelineTiming timing = run(schedule, alike, schedule.chunks);
  finish(timing, schedule,
         schedule.micro_batches * (times.forward + times.backward_input + times.backward_weight));
  return timing;
}

PipelineTiming time_of(const PipelineSchedule& schedule, std::span<const PipelineTimes> of_chunks,
                       double processors) {
  if (of_chunks.size() != static_cast<size_t>(schedule.all_chunks()))
    throw InvalidArgument("pipeline times: " + std::to_string(of_chunks.size()) + " chunks' for " +
                          std::to_string(schedule.all_chunks()) + " chunks; give one of each");
  if (!(processors > 0))
    throw InvalidArgument("pipeline times: stages share " + std::to_string(processors) +
                          " processors; give more than 0");
  std::vector<double> computed(static_cast<size_t>(schedule.stages), 0);
  for (size_t chunk = 0; chunk < of_chunks.size(); ++chunk) {
    const PipelineTimes& times = of_chunks[chunk];
    check(times);
    computed[static_cast<size_t>(schedule.stage_of[chunk])] +=
        times.forward + times.backward_input + times.backward_weight;
  }
  PipelineTiming timing = processors < schedule.stages
                              ? SharedRun(schedule, of_chunks, processors).run()
                              : run(schedule, of_chunks, 1);
  finish(timing, schedule,
         schedule.micro_batches * *std::max_element(computed.begin(), computed.end()));
  return timing;
}

std::optional<double> expected_bubble(const PipelineSchedule& schedule,
                                      const PipelineTimes& times) {
  const double stages = schedule.stages, micro_batches = schedule.micro_batches;
  if (schedule.name == "gpipe" || schedule.name == "1f1b" ||
      (schedule.name == "interleaved" && schedule.chunks == 1))
    return (stages - 1) / micro_batches;
  if (schedule.name == "interleaved" && schedule.micro_batches % schedule.stages == 0)
    return (stages - 1) / (schedule.chunks * micro_batches);
  const double all = times.forward + times.backward_input + times.backward_weight;
  if (schedule.name == "zb-h1" && micro_batches >= stages)
    return (stages - 1) * (times.forward + times.backward_input - times.backward_weight) /
           (micro_batches * all);
  const bool equal =
      times.forward == times.backward_input && times.forward == times.backward_weight;
  if (schedule.name == "zb-v" && equal && micro_batches >= 2 * stages - 1) return 0;
  return std::nullopt;
}

}  // namespace lockstep::inline v0
