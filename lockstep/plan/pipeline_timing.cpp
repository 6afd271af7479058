#include "lockstep/plan/pipeline_timing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

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

}  // namespace

PipelineTiming time_of(const PipelineSchedule& schedule, const PipelineTimes& times) {
  check(times);
  PipelineTiming timing;
  timing.actions.resize(schedule.actions.size());
  std::map<std::tuple<int, int, int>, double> given;  // message -> when
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t stage = 0; stage < schedule.actions.size(); ++stage) {
      auto& done = timing.actions[stage];
      while (done.size() < schedule.actions[stage].size()) {
        const PipelineAction& action = schedule.actions[stage][done.size()];
        double start = done.empty() ? 0 : done.back().end;
        if (const auto message = received_by(schedule, action)) {
          const auto found = given.find({message->from, message->to, message->micro_batch});
          if (found == given.end()) break;
          const bool same =
              schedule.stage_of[static_cast<size_t>(message->from)] == static_cast<int>(stage);
          start = std::max(start, found->second + (same ? 0 : times.communication));
        }
        const double end = start + duration_of(action.work, times) / schedule.chunks;
        if (const auto message = sent_by(schedule, action))
          given[{message->from, message->to, message->micro_batch}] = end;
        done.push_back({action, start, end});
        timing.makespan = std::max(timing.makespan, end);
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < schedule.actions.size(); ++stage)
    LOCKSTEP_CHECK(timing.actions[stage].size() == schedule.actions[stage].size(),
                   "a schedule to be timed has passed check_schedule()");
  timing.ideal =
      schedule.micro_batches * (times.forward + times.backward_input + times.backward_weight);
  timing.bubble = (timing.makespan - timing.ideal) / timing.ideal;
  for (const auto& actions : timing.actions)
    timing.inner_bubble = std::max(timing.inner_bubble, waited_inside(actions) / timing.ideal);
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
