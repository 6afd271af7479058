// The places of units and parameters on the ranks, as numbers and in words.
#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/core/check.h"
#include "lockstep/products/internal/state.h"

namespace lockstep::inline v0 {
std::map<std::string, int> ParallelLm::State::stages_of_parameters() const {
  const auto& units = lm->unit_names();
  std::vector<int> stage_of_unit;
  for (size_t chunk = 0; chunk < how.cut.size(); ++chunk)
    stage_of_unit.insert(stage_of_unit.end(), static_cast<size_t>(how.cut[chunk]),
                         schedule.stage_of[chunk]);
  std::map<std::string, int> stages;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) {
    const auto has = [&, whole = &name](const std::string& unit) {
      return whole->starts_with(unit + ".");
    };
    const auto unit = std::find_if(units.begin(), units.end(), has);
    LOCKSTEP_CHECK(unit != units.end(), "every parameter is a unit's");
    stages[name] = stage_of_unit[static_cast<size_t>(unit - units.begin())];
  }
  return stages;
}

std::string ParallelLm::str() const {
  const State& state = *state_;
  std::ostringstream out;
  out << state.mesh.str();
  const auto& units = state.lm->unit_names();
  int first = 0;
  for (size_t chunk = 0; chunk < state.how.cut.size(); ++chunk) {
    const int behind = first + state.how.cut[chunk];
    out << "\n  stage " << state.schedule.stage_of[chunk] << ": "
        << units[static_cast<size_t>(first)];
    if (behind - first > 1) out << " to " << units[static_cast<size_t>(behind) - 1];
    first = behind;
  }
  int64_t mine = 0;
  for (const DividedParameter& part : parameters()) mine += part.copy ? 0 : part.tensor.numel();
  out << "\n  rank " << state.comm.rank() << " has " << mine << " of "
      << parameter_count(state.config) << " parameters";
  return out.str();
}

}  // namespace lockstep::inline v0
