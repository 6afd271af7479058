#include "lockstep/plan/estimate/pipeline_shapes.h"

#include <algorithm>

namespace lockstep::inline v0::plan {
namespace {

int64_t few_micro_batches(const Layout& layout) {
  const int64_t all = layout.micro_batches(), stages = layout.pipe;
  if (stages == 1) return 1;
  if (all <= 3 * stages) return all;
  if (all % stages == 0) return 3 * stages;
  // Interleaved goes round in groups whose number depends on all of them.
  return layout.schedule == "interleaved" ? all : 2 * stages + all % stages;
}

std::vector<int> most_held(const PipelineSchedule& schedule, int stage) {
  const std::vector<int> chunks = schedule.chunks_of(stage);
  std::vector<int> now(chunks.size(), 0), most = now;
  int sum = 0, largest = 0;
  for (const PipelineAction& action : schedule.actions[static_cast<size_t>(stage)]) {
    const auto place = std::lower_bound(chunks.begin(), chunks.end(), action.chunk);
    int& held = now[static_cast<size_t>(place - chunks.begin())];
    if (action.work == PipelineWork::kForward) {
      ++held;
      if (++sum > largest) {
        largest = sum;
        most = now;
      }
    } else if (action.work != PipelineWork::kBackwardInput) {
      // With gradients in two steps what the second needs goes with it.
      --held;
      --sum;
    }
  }
  return most;
}

}  // namespace

const PipelineShape& PipelineShapes::of(const Layout& layout) {
  const auto batches = static_cast<int>(few_micro_batches(layout));
  const std::string name = layout.pipe == 1 ? "1f1b" : layout.schedule;
  const auto [found, fresh] =
      shapes_.try_emplace({name, layout.pipe, layout.chunks, batches}, PipelineShape{});
  PipelineShape& shape = found->second;
  if (!fresh) return shape;
  shape.schedule = make_schedule(
      name, {.stages = layout.pipe, .micro_batches = batches, .chunks = layout.chunks});
  for (int stage = 0; stage < layout.pipe; ++stage)
    shape.held.push_back(most_held(shape.schedule, stage));
  return shape;
}

int stage_of_chunk(const Layout& layout, int chunk) {
  if (layout.schedule == "zb-v" && chunk >= layout.pipe) return 2 * layout.pipe - 1 - chunk;
  return chunk % layout.pipe;
}

}  // namespace lockstep::inline v0::plan
