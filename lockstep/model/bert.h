// BertClassifier: BERT (Devlin et al., arXiv:1810.04805) that puts texts into classes, as
// transformers' BertForSequenceClassification. Parameters have its names
// ("bert.encoder.layer.0.attention.self.query.weight"), so that files are exchanged as they are.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

#include "lockstep/model/bert_config.h"
#include "lockstep/model/initial_parameters.h"

namespace lockstep {
namespace internal {
class BertEncoder;
}  // namespace internal

// A batch of token ids, as BertClassifier takes it.
//   padded: ids int64 [B, T]; attention_mask int64 or bool [B, T], 1 where a token is (undefined:
//           everywhere); token_type_ids int64 [B, T] (undefined: 0)
//   packed: ids int64 [N], the B sequences end to end; lengths int64 [B] on the CPU, whose sum is
//           N; token_type_ids int64 [N] (undefined: 0). No padding is computed; results are those
//           of the padded batch.
class BertClassifierImpl : public torch::nn::Module {
 public:
  // On the CPU, in float32; the numbers are decided by the default generator's state. Throws
  // InvalidArgument (check(config)).
  explicit BertClassifierImpl(const BertConfig& config = {},
                              InitialParameters initial = InitialParameters::kDrawn);

  // -> logits float [B, labels]. Throws InvalidArgument for other shapes, and sequences longer than
  // max_position_embeddings or empty.
  //
  // The last layer computes the first token of each sequence only, as nothing else of it is
  // looked at.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask = {},
                     const at::Tensor& token_type_ids = {}, const at::Tensor& lengths = {});

  const BertConfig& config() const { return config_; }

 private:
  BertConfig config_;
  std::shared_ptr<internal::BertEncoder> bert_;
  torch::nn::Linear classifier_;
};

TORCH_MODULE(BertClassifier);

}  // namespace lockstep
