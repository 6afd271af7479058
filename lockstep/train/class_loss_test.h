// The loss of models that give logits of classes, for tests of what trains them.
#pragma once

#include <torch/nn/functional/loss.h>

#include "lockstep/train/trainer.h"

namespace lockstep::inline v0 {

struct ClassLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor logits = model(batch.input);
    return {torch::nn::functional::cross_entropy(logits, batch.target), logits, batch.target};
  }
};

}  // namespace lockstep::inline v0
