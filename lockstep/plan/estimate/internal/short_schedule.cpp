#include "lockstep/plan/estimate/internal/short_schedule.h"

#include <algorithm>

namespace lockstep::inline v0::plan::internal {

PipelineSchedule short_schedule(const Layout& layout) {
  const int64_t all = layout.micro_batches(), stages = layout.pipe;
  if (stages == 1) return make_schedule("1f1b", {.stages = 1, .micro_batches = 1, .chunks = 1});
  int64_t few = all;
  if (all > 3 * stages) {
    if (all % stages == 0)
      few = 3 * stages;
    else if (layout.schedule != "interleaved")
      few = 2 * stages + all % stages;
  }
  return make_schedule(
      layout.schedule,
      {.stages = layout.pipe, .micro_batches = static_cast<int>(few), .chunks = layout.chunks});
}

}  // namespace lockstep::inline v0::plan::internal
