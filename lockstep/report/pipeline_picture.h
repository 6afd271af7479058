// A pipeline's schedule as an SVG picture and as JSON, either as planned or with the measured one
// below the plan. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/plan/pipeline_plan.h"

namespace lockstep::inline v0 {

// Returns a whole SVG file: one line per stage, time from left to right.
LOCKSTEP_API std::string pipeline_svg(const PlannedPipeline& plan);
// Draws the plan with the mean times, and below it, to the same scale and in the same colours, the
// measured schedule; also states the bubbles beside the formula's, and how many micro-batches'
// activations the stages hold.
LOCKSTEP_API std::string pipeline_svg(const MeasuredPipeline& measured);

LOCKSTEP_API nlohmann::ordered_json pipeline_json(const PlannedPipeline& plan);
// The JSON of measured.planned, in seconds, with the measured values under "measured".
LOCKSTEP_API nlohmann::ordered_json pipeline_json(const MeasuredPipeline& measured);
// Reads the JSON of the second function; also a user's own schedule.
// Throws: DataError with one line that names `where`, the file.
LOCKSTEP_API MeasuredPipeline parse_measured_pipeline(const std::string& text,
                                                      const std::string& where);

}  // namespace lockstep::inline v0
