// A pipeline's schedule for people and programs: lines of text, an SVG picture, JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/plan/pipeline_timing.h"

namespace lockstep::cli {

struct PlannedPipeline {
  PipelineSchedule schedule;
  PipelineTimes times;
  PipelineTiming timing;
};
// Throws InvalidArgument as make_schedule() and time_of() do.
PlannedPipeline plan_pipeline(const std::string& schedule, const PipelineSize& size,
                              const PipelineTimes& times);

// A line a stage, time from left to right: "F3" a forward, dots where it waits; then the bubble and what
// each stage holds, beside theory. Where an action would have less than one of `columns` columns, there are
// no such lines.
std::string text_of(const PlannedPipeline& plan, size_t columns = 120);

// A line a schedule: those that go with this size, one below the other.
std::string comparison_of(const std::vector<PlannedPipeline>& plans);

// The whole file.
std::string svg_of(const PlannedPipeline& plan);

nlohmann::ordered_json json_of(const PlannedPipeline& plan);

}  // namespace lockstep::cli
