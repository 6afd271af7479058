// What a ParallelLm is made of.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/products/parallel_lm.h"

namespace lockstep {

// Parameters whose gradients are averaged by the same ranks, and of which the same ranks count in the model's norm.
struct LmParameterClass {
  std::vector<const LmParameterPart*> parts;
  Communicator averaged;  // over
  bool counts = true;     // in the norm of the whole model, on this rank
  std::unique_ptr<ZeroOptimizer> optimizer = nullptr;
};

struct ParallelLm::State {
  State(const LmConfig& config, Communicator given, const LmParallelism& how,
        const ParallelLmOptions& options);

  // Which sequences a micro-batch has, and their tokens.
  struct Row {
    at::Tensor ids, targets;  // [tokens]
    std::vector<std::vector<int64_t>> lengths;
    std::vector<int64_t> targets_in;  // targets that count, of each micro-batch
    int64_t all_targets = 0;
  };
  Row row_of(const LmRowBatch& batch) const;
  // Of the whole model's parameters: which stage has them, a tied one's first place.
  std::map<std::string, int> stages_of_parameters() const;
  PipelineBatch pipeline_batch(const Row& row, double scale);

  Communicator comm;
  LmConfig config;
  ParallelLmOptions options;
  LmParallelism how;
  Mesh mesh;
  PipelineSchedule schedule;
  TransformerLm lm{nullptr};
  TensorParts parts;
  std::vector<LmParameterPart> own;
  std::optional<LmChunks> chunks;
  std::optional<Pipeline> pipeline;
  std::vector<LmParameterClass> classes;
  uint64_t steps = 0;  // that have drawn
};

}  // namespace lockstep
