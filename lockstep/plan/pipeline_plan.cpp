#include "lockstep/plan/pipeline_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/plan/pipeline_check.h"

namespace lockstep::inline v0 {
namespace {

using MeasuredActions = std::vector<std::vector<TimedAction>>;

std::string measured_stage(size_t stage) {
  return "measured pipeline: stage " + std::to_string(stage);
}

// The schedule of a step of `count` micro-batches: what Pipeline leaves out of it.
PipelineSchedule first_of(PipelineSchedule schedule, int count) {
  schedule.micro_batches = count;
  for (auto& actions : schedule.actions)
    std::erase_if(actions,
                  [&](const PipelineAction& action) { return action.micro_batch >= count; });
  return schedule;
}

int micro_batches_of(const MeasuredActions& actions) {
  int count = 0;
  for (const auto& of_stage : actions)
    for (const TimedAction& timed : of_stage) count = std::max(count, timed.action.micro_batch + 1);
  return count;
}

void check_measured(const PipelineSchedule& schedule, size_t stage,
                    const std::vector<TimedAction>& ran) {
  const std::vector<PipelineAction>& planned = schedule.actions[stage];
  const auto name = [&](const PipelineAction& action) {
    return to_string(action, schedule.chunks);
  };
  double at = -INFINITY;
  for (size_t i = 0; i < std::max(ran.size(), planned.size()); ++i) {
    if (i >= ran.size() || i >= planned.size() || ran[i].action != planned[i])
      throw InvalidArgument(
          measured_stage(stage) + " ran " + (i < ran.size() ? name(ran[i].action) : "nothing") +
          " where the schedule has " + (i < planned.size() ? name(planned[i]) : "nothing"));
    const bool good = std::isfinite(ran[i].start) && std::isfinite(ran[i].end) &&
                      ran[i].start >= at && ran[i].end >= ran[i].start;
    if (!good)
      throw InvalidArgument(measured_stage(stage) + ": " + name(planned[i]) +
                            " begins before the action before it has ended, or ends before it "
                            "begins");
    at = ran[i].end;
  }
}

// What each stage's clock must be put forward, and where the first action of all then begins.
std::pair<std::vector<double>, double> clocks_of(const PipelineSchedule& schedule,
                                                 const MeasuredActions& actions) {
  std::map<std::tuple<int, int, int>, std::pair<size_t, double>> sent;  // message -> stage, when
  const auto key = [](const PipelineMessage& message) {
    return std::tuple(message.from, message.to, message.micro_batch);
  };
  for (size_t stage = 0; stage < actions.size(); ++stage)
    for (const TimedAction& timed : actions[stage])
      if (const auto message = sent_by(schedule, timed.action))
        sent[key(*message)] = {stage, timed.end};
  std::vector<double> forward(actions.size(), 0.0);
  bool moved = true;
  for (size_t round = 0; moved; ++round) {
    if (round > actions.size() + 1)
      throw InvalidArgument(
          "measured pipeline: times that no clocks can have; a message is received before it was "
          "sent");
    moved = false;
    for (size_t stage = 0; stage < actions.size(); ++stage) {
      for (const TimedAction& timed : actions[stage]) {
        const auto message = received_by(schedule, timed.action);
        if (!message) continue;
        const auto& [from, when] = sent.at(key(*message));
        const double early = when + forward[from] - (timed.start + forward[stage]);
        if (early <= 1e-12) continue;  // rounding moves nothing
        forward[stage] += early;
        moved = true;
      }
    }
  }
  double first = INFINITY;
  for (size_t stage = 0; stage < actions.size(); ++stage)
    if (!actions[stage].empty())
      first = std::min(first, actions[stage].front().start + forward[stage]);
  return {forward, first};
}

PipelineTimes means_of(const PipelineSchedule& schedule, const MeasuredActions& actions) {
  PipelineTimes times{0, 0, 0, 0};
  for (const auto& of_stage : actions) {
    for (const TimedAction& timed : of_stage) {
      const double took = timed.end - timed.start;
      switch (timed.action.work) {
        case PipelineWork::kForward:
          times.forward += took;
          break;
        case PipelineWork::kBackward:
          times.backward_input += took / 2;
          times.backward_weight += took / 2;
          break;
        case PipelineWork::kBackwardInput:
          times.backward_input += took;
          break;
        case PipelineWork::kBackwardWeight:
          times.backward_weight += took;
          break;
      }
    }
  }
  const double share = 1.0 / (schedule.stages * schedule.micro_batches);
  times.forward *= share;
  times.backward_input *= share;
  times.backward_weight *= share;
  return times;
}

PipelineTiming timing_of(MeasuredActions actions) {
  PipelineTiming timing;
  double inner = 0;
  for (const auto& of_stage : actions) {
    double busy = 0;
    for (const TimedAction& timed : of_stage) busy += timed.end - timed.start;
    timing.ideal += busy / static_cast<double>(actions.size());
    timing.makespan = std::max(timing.makespan, of_stage.back().end);
    inner = std::max(inner, of_stage.back().end - of_stage.front().start - busy);
  }
  timing.bubble = (timing.makespan - timing.ideal) / timing.ideal;
  timing.inner_bubble = inner / timing.ideal;
  timing.actions = std::move(actions);
  return timing;
}

}  // namespace

PlannedPipeline plan_pipeline(PipelineSchedule schedule, const PipelineTimes& times) {
  check_schedule(schedule);
  PipelineTiming timing = time_of(schedule, times);
  return {std::move(schedule), times, std::move(timing)};
}

PlannedPipeline plan_pipeline(std::string_view schedule, const PipelineSize& size,
                              const PipelineTimes& times) {
  return plan_pipeline(make_schedule(schedule, size), times);
}

MeasuredPipeline measured_pipeline(const PipelineSchedule& schedule, MeasuredActions actions,
                                   std::vector<int> most_held) {
  const auto stages = static_cast<size_t>(schedule.stages);
  if (actions.size() != stages || most_held.size() != stages)
    throw InvalidArgument("measured pipeline: " + std::to_string(actions.size()) +
                          " stages' actions and " + std::to_string(most_held.size()) +
                          " stages' activations; the schedule has " + std::to_string(stages));
  const int count = micro_batches_of(actions);
  if (count < 1 || count > schedule.micro_batches)
    throw InvalidArgument("measured pipeline: " + std::to_string(count) +
                          " micro-batches; the schedule has " +
                          std::to_string(schedule.micro_batches));
  PipelineSchedule ran = first_of(schedule, count);
  for (size_t stage = 0; stage < stages; ++stage) check_measured(ran, stage, actions[stage]);
  const auto [forward, first] = clocks_of(ran, actions);
  for (size_t stage = 0; stage < stages; ++stage) {
    for (TimedAction& timed : actions[stage]) {
      timed.start += forward[stage] - first;
      timed.end += forward[stage] - first;
    }
  }
  const PipelineTimes times = means_of(ran, actions);
  return {plan_pipeline(std::move(ran), times), timing_of(std::move(actions)),
          std::move(most_held)};
}

}  // namespace lockstep::inline v0
