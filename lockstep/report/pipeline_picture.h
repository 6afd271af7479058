// A pipeline's schedule as an SVG picture and as JSON: as planned, or as it ran below its plan. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/plan/pipeline_plan.h"

namespace lockstep {

// The whole file: a line a stage, time from left to right.
std::string pipeline_svg(const PlannedPipeline& plan);
// What was planned with the mean times, and below, to the same scale and in the same colours, what was measured; with
// the bubbles beside the formula's and what stages hold.
std::string pipeline_svg(const MeasuredPipeline& measured);

nlohmann::ordered_json pipeline_json(const PlannedPipeline& plan);
// The same of measured.planned, in seconds, with what was measured under "measured".
nlohmann::ordered_json pipeline_json(const MeasuredPipeline& measured);
// What the latter wrote; also of a schedule of one's own. Throws DataError in one line with `where`, the file's name.
MeasuredPipeline parse_measured_pipeline(const std::string& text, const std::string& where);

}  // namespace lockstep
