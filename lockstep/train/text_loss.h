// LossOutput and the default loss of Trainer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/functional/loss.h>

#include <concepts>
#include <cstdint>

#include "lockstep/core/export.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/text_batch.h"

namespace lockstep::inline v0 {

// The result of a compute_loss hook for a batch.
struct LossOutput {
  at::Tensor loss;    // mean over the batch's samples, or over its targets (CountsTargets), 0-dim
  at::Tensor logits;  // [B, ...]: the model's output, for metrics; may be undefined
  at::Tensor labels;  // [B]: one for each sample
};

// A hook whose loss is a mean over targets instead of samples, such as tokens, tells the number of
// targets of a batch:
//
//   int64_t targets(const Batch& batch) const {
//     return batch.labels.ne(-100).sum().item<int64_t>();
//   }
//
// Micro-batches, ranks and the batches of evaluations are then weighted by their targets, so that a
// step's loss is one mean. A batch without targets adds nothing to the step's loss and gradient,
// even if its loss is not a number (0 / 0): its backward goes through LossOutput::logits. Without
// logits it goes through the loss, whose gradient must then be a number (cross entropy's is 0; a
// mean made by hand must divide by max(targets, 1)). A step in which no rank has a target has loss
// 0 and gradients of 0, and the optimizer takes it like any other. An evaluation without any target
// is InvalidArgument.
// Cost: an all_reduce of 8 bytes for each step, and the memory of all micro-batches of a step at
// once.
template <typename Loss, typename Batch>
concept CountsTargets = requires(const Loss& loss, const Batch& batch) {
  { loss.targets(batch) } -> std::convertible_to<int64_t>;
};

// A compute_loss hook for that model and data set.
template <typename Loss, typename M, typename D>
concept LossFor =
    data::Dataset<D> && requires(Loss& loss, M& model, const data::BatchOf<D>& batch) {
      { loss(model, batch) } -> std::convertible_to<LossOutput>;
    };

// Cross entropy of a BertClassifier's logits.
struct LOCKSTEP_API TextClassificationLoss{
    template <typename Model> requires requires(Model & model, const data::TextBatch& batch){
        model->forward(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
}  // namespace lockstep::inline v0
LossOutput operator()(Model& model, const data::TextBatch& batch) const {
  const at::Tensor logits =
      model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
  return {torch::nn::functional::cross_entropy(logits, batch.labels), logits, batch.labels};
}
}
;

}  // namespace lockstep::inline v0
