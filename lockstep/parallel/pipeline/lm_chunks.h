// LmChunks: TransformerLm's units as the chunks of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::inline v0 {

// The result of the last chunk, which PipelineBatch::loss takes.
enum class LmEnd : uint8_t {
  kLogits,  // [tokens, vocab_size]
  // The input of the model's last unit, for LmChunks::loss(): faster, and without the logits'
  // memory.
  kRows,
};

// Every rank makes the model and uses its own chunks' units; made with InitialParameters::kNone, it
// takes no memory for the others' (drawn_parts() gives a chunk its values). Rows are tokens. Under
// autocast the last norm and the head stay in one chunk: rows between them are bfloat16, and other
// rows have the parameters' type. A copy is a handle. Routers of a model in training learn from
// their losses (router_losses(), lm_experts.h), the mean over micro-batches weighted by tokens; the
// step's loss does not include them.
// Thread-safety: the communicator's thread only.
class LOCKSTEP_API LmChunks {
 public:
  // `cut`: of lm->units() (pipeline_cut.h).
  // Throws: InvalidArgument for another number of units.
  LmChunks(TransformerLm lm, const std::vector<int>& cut, LmEnd end = LmEnd::kLogits);

  // The chunks for Pipeline, on the rank of this stage. Gradients of weights can be deferred where
  // a layer is computed by its fused nodes (LmPassOptions::deferred).
  // Throws: InvalidArgument for a schedule with another number of chunks.
  std::vector<PipelineChunk> chunks_of(const PipelineSchedule& schedule, int stage) const;
  // The embeddings, where the head multiplies by them, for PipelineOptions; otherwise none.
  std::vector<PipelineTie> ties_of(const PipelineSchedule& schedule, int stage) const;
  // The names in named_parameters() of the parameters whose gradients the stage computes, for its
  // optimizer. Tied embeddings are on both stages.
  std::vector<std::string> parameters_of(const PipelineSchedule& schedule, int stage) const;

  // Called before each step or evaluation. `lengths`: the lengths of the sequences in each
  // micro-batch, end to end. `dropout_seed`: the same on all ranks (LmPassOptions::dropout_seed).
  // `scale`: a factor of the loss, for the routers' losses. `padding`: the number of padding
  // sequences at the end of each micro-batch (LmPassOptions::padding); empty: none. Returns
  // PipelineBatch::rows: the tokens of each micro-batch; with take_tokens() those that
  // own_rows() of its lengths selects, for which this rank gives ids and targets.
  std::vector<int64_t> begin(std::vector<std::vector<int64_t>> lengths, uint64_t dropout_seed = 0,
                             double scale = 1, std::vector<int64_t> padding = {});

  // Statistics of the routers of this stage's layers over the micro-batches of the last step in
  // training, added up; entropy and balance are means by tokens. By layers, ascending.
  std::vector<RouterStatistics> routers() const;

  // For PipelineBatch::loss with kRows: head_loss() of the micro-batch's rows and its targets,
  // int64 [tokens].
  at::Tensor loss(const at::Tensor& rows, const MicroBatch& micro_batch, const at::Tensor& targets);
  // The same for evaluation: the loss of each token.
  TokenScores scores(const at::Tensor& rows, const MicroBatch& micro_batch,
                     const at::Tensor& targets);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0
