// What the stages of a pipeline compare before they send each other anything.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::internal {

// Of a pipeline: schedules and disciplines, ties with their parameters' sizes, types and whether they are
// frozen, and of neighbouring chunks their rows. Collective. Throws Mismatch on all ranks alike.
void agree_on_pipeline(Communicator& comm, const PipelineSchedule& schedule,
                       const PipelineDiscipline& discipline,
                       const std::vector<PipelineChunk>& chunks,
                       const std::vector<PipelineTie>& ties);

// Of a step: forward and backward or forward alone, how many micro-batches, their rows. Collective, one
// all_gather. Throws Mismatch on all ranks alike.
void agree_on_step(Communicator& comm, const PipelineSchedule& schedule, bool backward,
                   const std::vector<int64_t>& rows);

}  // namespace lockstep::internal
