// A layout's pipeline with as few micro-batches as show what all of them do.
#pragma once

#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0::plan::internal {

// The schedule of the layout with its own number of micro-batches, or, where they are more than thrice the stages,
// with fewer of them: from there on each further one adds the time of the slowest stage and holds nothing more.
PipelineSchedule short_schedule(const Layout& layout);

}  // namespace lockstep::inline v0::plan::internal
