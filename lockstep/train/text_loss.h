// LossOutput and the default loss of Trainer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/data/text_batch.h"

namespace lockstep {

// What a compute_loss hook gives for a batch.
struct LossOutput {
  at::Tensor loss;    // mean over the batch, 0-dim
  at::Tensor logits;  // [B, ...]: the model's output, for metrics; undefined: there is none
  at::Tensor labels;  // [B]: one a sample
};

// Cross entropy of a BertClassifier's logits.
struct TextClassificationLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::TextBatch& batch) const {
    const at::Tensor logits =
        model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths);
    return {torch::nn::functional::cross_entropy(logits, batch.labels), logits, batch.labels};
  }
};

}  // namespace lockstep
