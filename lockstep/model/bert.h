// BertClassifier: BERT (Devlin et al., arXiv:1810.04805) that puts texts into classes, as
// transformers' BertForSequenceClassification. Parameters have its names
// ("bert.encoder.layer.0.attention.self.query.weight"), so that files are exchanged as they are.
//
// As TransformerLm, it is a list of units, tokens as rows in and out, each Hookable
// (hooks/forward_hook.h): embeddings, layers, pooler; then the classifier.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/initial_parameters.h"

namespace lockstep::inline v0 {
namespace internal {
class BertEncoder;
struct BertPass;
}  // namespace internal

// One forward: what all its units are given beside their rows. Made by BertClassifier::pass(); a copy
// is a handle.
using BertPass = std::shared_ptr<const internal::BertPass>;

// Rows [tokens, hidden_size] to rows: the first unit takes ids, int64 [tokens]; the last layer gives the
// first token of each sequence, the pooler [sequences, hidden_size].
class LOCKSTEP_API BertUnit : public torch::nn::Module,
                              public Hookable<at::Tensor(const at::Tensor&, const BertPass&)> {
 public:
  using Signature = at::Tensor(const at::Tensor&, const BertPass&);
};

// A batch of token ids, as BertClassifier takes it.
//   padded: ids int64 [B, T]; attention_mask int64 or bool [B, T], 1 where a token is (undefined:
//           everywhere); token_type_ids int64 [B, T] (undefined: 0)
//   packed: ids int64 [N], the B sequences end to end; lengths int64 [B] on the CPU, whose sum is
//           N; token_type_ids int64 [N] (undefined: 0). No padding is computed; results are those
//           of the padded batch.
class LOCKSTEP_API BertClassifierImpl : public torch::nn::Module {
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

  // The same step by step: pass(), which takes what forward() does and throws what it throws; the units
  // in order, the first with ids_of(pass), each other with what the one before gave; classify(). Where
  // none has a hook, forward() hands from layer to layer also what products read: in bfloat16 the rounded rows.
  BertPass pass(const at::Tensor& ids, const at::Tensor& attention_mask = {},
                const at::Tensor& token_type_ids = {}, const at::Tensor& lengths = {}) const;
  static at::Tensor ids_of(const BertPass& pass);
  const std::vector<std::shared_ptr<BertUnit>>& units() const { return units_; }
  // Their names in named_modules(), in the same order: "bert.encoder.layer.0".
  const std::vector<std::string>& unit_names() const { return unit_names_; }
  // Turns the pooler's output into logits.
  at::Tensor classify(const at::Tensor& pooled);

  const BertConfig& config() const { return config_; }  // as given

 private:
  BertConfig config_;
  std::shared_ptr<internal::BertEncoder> bert_;
  torch::nn::Linear classifier_;
  std::vector<std::shared_ptr<BertUnit>> units_;
  std::vector<std::string> unit_names_;
};

TORCH_MODULE(BertClassifier);

}  // namespace lockstep::inline v0
