// Pipelines as estimates need them, made once for all layouts that share one. Pure.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0::plan {

// A schedule, and what its stages hold.
struct PipelineShape {
  // With the layout's own number of micro-batches, or, where they are more than thrice the stages, with fewer of them:
  // from there on each further one adds the time of the slowest stage, and nothing more is held.
  PipelineSchedule schedule;
  // For each stage and each of its chunks in ascending order: the number of micro-batches whose
  // activations the chunk holds when the stage holds most.
  std::vector<std::vector<int>> held;
};

// A search gives one to all its estimates. One thread at a time.
class LOCKSTEP_API PipelineShapes {
 public:
  // The shape of a layout that check() takes. Valid as long as this object.
  const PipelineShape& of(const Layout& layout);

 private:
  std::map<std::tuple<std::string, int, int, int>, PipelineShape> shapes_;
};

// The stage that has a chunk of the model: dealt round robin, or with zb-v there and back.
LOCKSTEP_API int stage_of_chunk(const Layout& layout, int chunk);

}  // namespace lockstep::inline v0::plan
