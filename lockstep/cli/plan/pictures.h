// A pipeline's schedule for people at a terminal, as lines of text. Pure.
// (report/pipeline_picture.h draws the picture.)
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/pipeline_plan.h"

namespace lockstep::inline v0::cli {

// Draws a line for each stage, time from left to right: "F3" is a forward, dots are waits. Then
// come the bubble and the activations that each stage holds, beside theory. The lines are left out
// where an action would have less than one of `columns` columns.
std::string text_of(const PlannedPipeline& plan, size_t columns = 120);
// Shows numbers alone: the measured ones, beside the plan of the mean times and the formulas.
std::string text_of(const MeasuredPipeline& measured);

// Has a line for each schedule that goes with this size.
std::string comparison_of(const std::vector<PlannedPipeline>& plans);

}  // namespace lockstep::inline v0::cli
