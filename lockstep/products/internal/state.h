// The state of a ParallelLm.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/products/parallel_lm.h"

namespace lockstep::inline v0 {

struct ParallelLm::State {
  State(const LmConfig& config, Communicator given, const Parallelism& how,
        const ParallelLmOptions& options);

  // A row's batch, micro-batch by micro-batch.
  struct Row {
    std::vector<std::vector<int64_t>> lengths;
    std::vector<int64_t> padding;          // each one's number of padding sequences, its last ones
    std::vector<at::Tensor> ids, targets;  // this rank's tokens of each
    // The tokens' places in the batch, `tokens` for padding; undefined: they follow each other.
    std::vector<at::Tensor> places;
    std::vector<int64_t> targets_in;      // each one's targets that count, of all its tokens
    std::vector<int64_t> tokens_of;       // each one's tokens without padding
    int64_t all_targets = 0, tokens = 0;  // the batch's
  };
  Row row_of(const LmRowBatch& batch, bool step);
  void agree_on_row(const at::Tensor& ids, const at::Tensor& targets,
                    const std::vector<int64_t>& lengths);
  size_t micro_batches_of(size_t sequences, bool training);
  // The stage of each of the whole model's parameters; a tied one has its first place.
  std::map<std::string, int> stages_of_parameters() const;
  PipelineBatch pipeline_batch(const Row& row, double scale);

  Communicator comm;
  LmConfig config;
  ParallelLmOptions options;
  Parallelism how;
  Mesh mesh;
  PipelineSchedule schedule;
  TransformerLm lm{nullptr};
  std::optional<DividedParameters> divided;
  std::optional<LmChunks> chunks;
  std::optional<Pipeline> pipeline;
  uint64_t steps = 0;  // steps that have drawn masks
};

}  // namespace lockstep::inline v0
