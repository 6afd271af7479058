// LmChunks: TransformerLm's units as the chunks of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep {

// What the last chunk gives, and PipelineBatch::loss takes.
enum class LmEnd : uint8_t {
  kLogits,  // [tokens, vocab_size]
  kRows,  // what the model's last unit takes, for LmChunks::loss(): faster, and without the logits' memory
};

// Every rank makes the model and uses its own chunks' units; made with InitialParameters::kNone, it takes
// no memory for the others' (drawn_parts() gives a chunk its values). Rows are tokens. Under autocast the
// last norm and the head stay in one chunk: between them rows are bfloat16, elsewhere of the parameters'
// type. A copy is a handle. The communicator's thread.
// Routers of a model in training learn from their losses (router_losses(), lm_experts.h), the mean over micro-batches
// by their tokens; the step's loss is without them.
class LmChunks {
 public:
  // `cut`: of lm->units() (pipeline_cut.h). Throws InvalidArgument for another number of units.
  LmChunks(TransformerLm lm, const std::vector<int>& cut, LmEnd end = LmEnd::kLogits);

  // For Pipeline, on the rank that is this stage. Gradients of weights can be deferred, where a layer is
  // computed by its fused nodes (LmPassOptions::deferred). Throws InvalidArgument for a schedule with
  // another number of chunks.
  std::vector<PipelineChunk> chunks_of(const PipelineSchedule& schedule, int stage) const;
  // The embeddings, where the head multiplies by them, for PipelineOptions; else nothing.
  std::vector<PipelineTie> ties_of(const PipelineSchedule& schedule, int stage) const;
  // The names of the parameters that the stage computes gradients of, in named_parameters(): what its
  // optimizer is for. Tied embeddings are on both.
  std::vector<std::string> parameters_of(const PipelineSchedule& schedule, int stage) const;

  // Before each step or evaluation: the lengths of the sequences in each micro-batch, end to end; and for
  // dropout a seed, the same on all ranks (LmPassOptions::dropout_seed). -> PipelineBatch::rows: tokens of each; with
  // LmOptions::context those that own_rows() of its lengths says, of which this rank gives ids and targets.
  // `scale`: what the loss is multiplied with, for the routers' losses. `padding`: how many of each micro-batch's last
  // sequences are padding (LmPassOptions::padding); empty: none.
  std::vector<int64_t> begin(std::vector<std::vector<int64_t>> lengths, uint64_t dropout_seed = 0,
                             double scale = 1, std::vector<int64_t> padding = {});

  // What the routers of this stage's layers did in the micro-batches of the last step in training, added up; entropy
  // and balance are means by tokens. By layers, ascending.
  std::vector<RouterStatistics> routers() const;

  // For PipelineBatch::loss with kRows: head_loss() of the micro-batch's rows and its targets, int64 [tokens].
  at::Tensor loss(const at::Tensor& rows, const MicroBatch& micro_batch, const at::Tensor& targets);
  // The same for evaluation: what each token loses.
  TokenScores scores(const at::Tensor& rows, const MicroBatch& micro_batch,
                     const at::Tensor& targets);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
