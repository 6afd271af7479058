// LossOutput and the default loss of Trainer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/functional/loss.h>

#include <concepts>
#include <cstdint>

#include "lockstep/data/dataset.h"
#include "lockstep/data/text_batch.h"

namespace lockstep {

// What a compute_loss hook gives for a batch.
struct LossOutput {
  at::Tensor loss;    // mean over the batch's samples, or over its targets (CountsTargets), 0-dim
  at::Tensor logits;  // [B, ...]: the model's output, for metrics; undefined: there is none
  at::Tensor labels;  // [B]: one a sample
};

// A hook whose loss is no mean over the samples but over what it predicts of them, tokens for example,
// says how many of these a batch has:
//
//   int64_t targets(const Batch& batch) const { return batch.labels.ne(-100).sum().item<int64_t>(); }
//
// Micro-batches, ranks and evaluations' batches then count by their targets instead of their samples: all
// is one mean, as of one batch. A batch may have none, and so may all of a rank: whatever number its loss then is
// (0 / 0), it adds nothing to the step's loss and gradient, as its backward goes through LossOutput::logits alone (where
// there are none, through the loss, whose gradient must then be a number: cross entropy's is 0; a mean made by hand
// divides by max(targets, 1)). A step in which no rank has any has loss 0 and gradients of 0, and is a step of the
// optimizer like others. An evaluation of no targets at all is InvalidArgument. Costs an all_reduce of 8 bytes a step,
// and the memory of all micro-batches of a step at once.
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
struct TextClassificationLoss {
  template <typename Model>
    requires requires(Model& model, const data::TextBatch& batch) {
      model->forward(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
    }
  LossOutput operator()(Model& model, const data::TextBatch& batch) const {
    const at::Tensor logits =
        model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
    return {torch::nn::functional::cross_entropy(logits, batch.labels), logits, batch.labels};
  }
};

}  // namespace lockstep
