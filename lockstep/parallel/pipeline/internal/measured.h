// The times of a step, from all stages together.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/plan/pipeline_plan.h"

namespace lockstep::inline v0::internal {

// The result is on rank 0.
// Collective: all ranks call it.
std::optional<MeasuredPipeline> gather_measured(Communicator& comm,
                                                const PipelineSchedule& schedule,
                                                const std::vector<TimedAction>& executed,
                                                int most_held);

}  // namespace lockstep::inline v0::internal
