#include "lockstep/parallel/pipeline/sequential_chunks.h"

#include "lockstep/core/errors.h"
#include "lockstep/plan/pipeline_cut.h"

namespace lockstep::inline v0 {

std::vector<PipelineChunk> sequential_chunks(torch::nn::Sequential model,
                                             const std::vector<int>& cut,
                                             const std::vector<PipelineRows>& between,
                                             const PipelineSchedule& schedule, int stage) {
  const std::vector<int> first = first_units(cut_by_counts(static_cast<int>(model->size()), cut));
  if (static_cast<int>(cut.size()) != schedule.all_chunks() || between.size() + 1 != cut.size())
    throw InvalidArgument("sequential_chunks: " + std::to_string(cut.size()) + " chunks and " +
                          std::to_string(between.size()) + " rows between them; the schedule has " +
                          std::to_string(schedule.all_chunks()) + " chunks");
  std::vector<PipelineChunk> chunks;
  for (const int chunk : schedule.chunks_of(stage)) {
    const auto at = static_cast<size_t>(chunk);
    PipelineChunk one;
    one.forward = [model, begin = first[at], end = first[at + 1]](const at::Tensor& rows,
                                                                  const MicroBatch&) mutable {
      at::Tensor x = rows;
      for (int i = begin; i < end; ++i) x = (model->begin() + i)->forward<at::Tensor>(x);
      return x;
    };
    if (at > 0) one.takes = between[at - 1];
    if (at < between.size()) one.gives = between[at];
    chunks.push_back(std::move(one));
  }
  return chunks;
}

}  // namespace lockstep::inline v0
