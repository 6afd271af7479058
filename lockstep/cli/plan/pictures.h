// A pipeline's schedule for people at a terminal: lines of text. Pure. (The picture:
// report/pipeline_picture.h.)
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/pipeline_plan.h"

namespace lockstep::cli {

// A line a stage, time from left to right: "F3" a forward, dots where it waits; then the bubble and
// what each stage holds, beside theory. Where an action would have less than one of `columns`
// columns, there are no such lines.
std::string text_of(const PlannedPipeline& plan, size_t columns = 120);
// Numbers alone: what was measured, beside the plan of the mean times and the formulas.
std::string text_of(const MeasuredPipeline& measured);

// A line a schedule: those that go with this size, one below the other.
std::string comparison_of(const std::vector<PlannedPipeline>& plans);

}  // namespace lockstep::cli
