// A schedule with its times: as planned, and as a pipeline has run it. Pure.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/plan/pipeline_timing.h"

namespace lockstep::inline v0 {

// A schedule with its times, as computed.
struct PlannedPipeline {
  PipelineSchedule schedule;
  PipelineTimes times;
  PipelineTiming timing;
};
// Throws InvalidArgument as make_schedule(), check_schedule() and time_of() do.
LOCKSTEP_API PlannedPipeline plan_pipeline(std::string_view schedule, const PipelineSize& size,
                                           const PipelineTimes& times);
LOCKSTEP_API PlannedPipeline plan_pipeline(PipelineSchedule schedule, const PipelineTimes& times);

// A schedule with its times, as measured.
struct MeasuredPipeline {
  // The schedule that was run, had each action taken the mean of its kind: 1f1b's backward counts
  // half for inputs and half for weights. In seconds.
  PlannedPipeline planned;
  // In seconds from the first action of all. Its ideal is what a stage computes in the mean, so stages of
  // unequal work are a bubble, too.
  PipelineTiming timing;
  std::vector<int> most_held;  // of each stage: the most activations at once
};
// `actions`: of each stage in the order in which it ran them, start and end in seconds by a clock of its own
// (Pipeline::executed()); the first micro-batches of the schedule, if not all. The stages' clocks are moved against each
// other by as little as lets no message be received before it was sent, and by nothing where none is. Throws
// InvalidArgument in one line: actions that are not the schedule's, event by event; times that no clocks can
// have; another number of stages.
LOCKSTEP_API MeasuredPipeline measured_pipeline(const PipelineSchedule& schedule,
                                                std::vector<std::vector<TimedAction>> actions,
                                                std::vector<int> most_held);

}  // namespace lockstep::inline v0
