// What a ParallelLm is made of.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/products/parallel_lm.h"

namespace lockstep {

// Parameters whose gradients are averaged by the same ranks, and of which the same ranks count in the model's norm.
struct LmParameterClass {
  std::vector<const LmParameterPart*> parts;
  Communicator averaged;      // over
  bool counts = true;         // in the norm of the whole model, on this rank
  ParameterNames names = {};  // of the optimizer's groups
  std::unique_ptr<ZeroOptimizer> optimizer = nullptr;  // none: none of them is in a group
};

struct ParallelLm::State {
  State(const LmConfig& config, Communicator given, const LmParallelism& how,
        const ParallelLmOptions& options);

  // A row's batch, micro-batch by micro-batch.
  struct Row {
    std::vector<std::vector<int64_t>> lengths;
    std::vector<int64_t> padding;          // of its sequences, the last ones: added to fill rows up
    std::vector<at::Tensor> ids, targets;  // this rank's tokens of each
    // Of them in the batch, `tokens` for those that were added; undefined: they follow each other.
    std::vector<at::Tensor> places;
    std::vector<int64_t> targets_in;      // that count, of all tokens of each
    std::vector<int64_t> tokens_of;       // each, without what was added
    int64_t all_targets = 0, tokens = 0;  // of the batch
  };
  Row row_of(const LmRowBatch& batch, bool step);
  void agree_on_row(const at::Tensor& ids, const at::Tensor& targets,
                    const std::vector<int64_t>& lengths);
  size_t micro_batches_of(size_t sequences, bool training);
  // Of the whole model's parameters: which stage has them, a tied one's first place.
  std::map<std::string, int> stages_of_parameters() const;
  std::vector<LmParameterClass> make_classes() const;
  PipelineBatch pipeline_batch(const Row& row, double scale);

  Communicator comm;
  LmConfig config;
  ParallelLmOptions options;
  LmParallelism how;
  Mesh mesh;
  PipelineSchedule schedule;
  TransformerLm lm{nullptr};
  TensorParts parts;
  PlacedParameters places;
  std::vector<LmParameterPart> own;
  std::optional<LmChunks> chunks;
  std::optional<Pipeline> pipeline;
  std::vector<LmParameterClass> classes;
  bool has_optimizer = false;
  std::vector<at::Tensor> untrained;  // of this rank, in none of the optimizer's groups
  uint64_t steps = 0;                 // that have drawn
};

}  // namespace lockstep
