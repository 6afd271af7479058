// The comparisons that the stages of a pipeline make before they send each other anything.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::inline v0::internal {

// For a pipeline: schedules and disciplines, ties with their parameters' sizes, types and
// frozenness, and the rows of neighbouring chunks.
// Collective: all ranks call it.
// Throws: Mismatch on all ranks alike.
void agree_on_pipeline(Communicator& comm, const PipelineSchedule& schedule,
                       const PipelineDiscipline& discipline,
                       const std::vector<PipelineChunk>& chunks,
                       const std::vector<PipelineTie>& ties);

// For a step: whether it has a backward, the number of micro-batches, and their rows.
// Collective: all ranks call it.
// Throws: Mismatch on all ranks alike.
// Cost: one all_gather.
void agree_on_step(Communicator& comm, const PipelineSchedule& schedule, bool backward,
                   const std::vector<int64_t>& rows);

}  // namespace lockstep::inline v0::internal
