// The step times that `lockstep compare --parallelism` plans beside those that it measures.
#pragma once

#include <vector>

#include "lockstep/cli/engine/calibrate/step_parts.h"
#include "lockstep/cli/engine/compare/parallelism_ways.h"
#include "lockstep/plan/calibration/calibration.h"

namespace lockstep::inline v0::engine {

// Plans the steps of one comparison's ways on one machine. Pure.
class StepPlanner {
 public:
  StepPlanner(plan::Calibration machine, const DividedSettings& settings);

  // A step's milliseconds. Throws InvalidArgument for a way that the planner does not know.
  double step_ms(const DividedWay& way) const;

 private:
  DividedSettings settings_;
  plan::Calibration machine_;
  plan::Stack stack_;
};

// The models whose parts a calibration of this comparison measures: the dense one, and the one with
// experts where a way has them. Pure.
std::vector<MeasuredModel> models_to_measure(const std::vector<DividedWay>& ways,
                                             const DividedSettings& settings);

}  // namespace lockstep::inline v0::engine
