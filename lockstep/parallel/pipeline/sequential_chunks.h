// A Sequential's children as the chunks of a pipeline.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::inline v0 {

// `cut`: of the children (pipeline_cut.h); `between`: the rows between each two chunks, one fewer
// than the chunks. Children take a tensor and return one, with the rows in dim 0. All gradients are
// computed in I; W does nothing. A child that changes its input in place cannot be a chunk's first.
// Throws: InvalidArgument for other numbers of children, chunks or rows.
LOCKSTEP_API std::vector<PipelineChunk> sequential_chunks(torch::nn::Sequential model,
                                                          const std::vector<int>& cut,
                                                          const std::vector<PipelineRows>& between,
                                                          const PipelineSchedule& schedule,
                                                          int stage);

}  // namespace lockstep::inline v0
