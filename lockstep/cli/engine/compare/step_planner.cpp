#include "lockstep/cli/engine/compare/step_planner.h"

#include <algorithm>
#include <utility>

#include "lockstep/plan/estimate/estimate.h"

namespace lockstep::inline v0::engine {

StepPlanner::StepPlanner(plan::Calibration machine, const DividedSettings& settings)
    : settings_(settings),
      machine_(plan::with_ranks(std::move(machine), settings.nproc)),
      stack_(machine_.stack.value_or(plan::known_stack("lockstep"))) {}

double StepPlanner::step_ms(const DividedWay& way) const {
  return 1000 * plan::estimate(planned_model(way, settings_), planned_layout(way, settings_),
                               machine_.machine, stack_)
                    .step;
}

std::vector<MeasuredModel> models_to_measure(const std::vector<DividedWay>& ways,
                                             const DividedSettings& settings) {
  std::vector<MeasuredModel> models;
  for (const bool experts : {false, true}) {
    const auto has = [&](const DividedWay& way) { return way.experts == experts; };
    if (std::none_of(ways.begin(), ways.end(), has)) continue;
    models.push_back({.name = settings.model + (experts ? " with experts" : ""),
                      .config = divided_model(settings, experts),
                      .tokens = settings.length});
  }
  return models;
}

}  // namespace lockstep::inline v0::engine
