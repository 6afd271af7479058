// BertClassifier: BERT (Devlin et al., arXiv:1810.04805) that puts texts into classes, as
// transformers' BertForSequenceClassification. Parameters have its names
// ("bert.encoder.layer.0.attention.self.query.weight"), so that files are exchanged as they are.
//
// As TransformerLm, it is a list of units, tokens as rows in and out, each Hookable
// (hooks/forward_hook.h): embeddings, layers, pooler; then the classifier.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/initial_parameters.h"

namespace lockstep {
namespace internal {
class BertEncoder;
struct BertPass;
}  // namespace internal

// One forward: what all its units are given beside their rows. Made by BertClassifier::pass(); a copy
// is a handle.
using BertPass = std::shared_ptr<const internal::BertPass>;

// Rows [tokens, hidden_size] to rows: the first unit takes ids, int64 [tokens]; the last layer gives the
// first token of each sequence, the pooler [sequences, hidden_size].
class BertUnit : public torch::nn::Module,
                 public Hookable<at::Tensor(const at::Tensor&, const BertPass&)> {
 public:
  using Signature = at::Tensor(const at::Tensor&, const BertPass&);
};

// The part of a model that one of several ranks has, where each layer is divided among them (tensor parallelism,
// Shoeybi et al., arXiv:1909.08053): heads and inner columns, evenly, and of the vocabulary the rows
// [vocab_size * part / parts, vocab_size * (part + 1) / parts). The functions are called on every rank in one order.
struct BertSplit {
  int64_t part = 0;
  int64_t parts = 1;  // divides num_attention_heads and intermediate_size
  // Before a divided product: rows as they are; in backward their gradients are added up over the parts.
  std::function<at::Tensor(const at::Tensor& rows)> enter = {};
  // After one: rows added up over the parts; in backward as they are.
  std::function<at::Tensor(const at::Tensor& rows)> leave = {};
  // What draws on every part as part 0's default generator is about to: there that one itself. Asked by each unit of a
  // model in training that drops.
  std::function<at::Generator()> generator = {};
};

// A batch of token ids, as BertClassifier takes it.
//   padded: ids int64 [B, T]; attention_mask int64 or bool [B, T], 1 where a token is (undefined:
//           everywhere); token_type_ids int64 [B, T] (undefined: 0)
//   packed: ids int64 [N], the B sequences end to end; lengths int64 [B] on the CPU, whose sum is
//           N; token_type_ids int64 [N] (undefined: 0). No padding is computed; results are those
//           of the padded batch.
class BertClassifierImpl : public torch::nn::Module {
 public:
  // On the CPU, in float32; the numbers are decided by the default generator's state. A part of a model is made with
  // kNone; its forwards are called on all parts, with the same batches, and its Linears take no hooks. Throws
  // InvalidArgument (check(config); a part that is to be drawn; what does not divide among the parts).
  explicit BertClassifierImpl(const BertConfig& config = {},
                              InitialParameters initial = InitialParameters::kDrawn,
                              BertSplit split = {});

  // -> logits float [B, labels]. Throws InvalidArgument for other shapes, and sequences longer than
  // max_position_embeddings or empty.
  //
  // The last layer computes the first token of each sequence only, as nothing else of it is
  // looked at.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask = {},
                     const at::Tensor& token_type_ids = {}, const at::Tensor& lengths = {});

  // The same step by step: pass(), which takes what forward() does and throws what it throws; the units
  // in order, the first with ids_of(pass), each other with what the one before gave; classify(). In
  // bfloat16 forward() also hands the rounded rows from layer to layer, where none has a hook.
  BertPass pass(const at::Tensor& ids, const at::Tensor& attention_mask = {},
                const at::Tensor& token_type_ids = {}, const at::Tensor& lengths = {}) const;
  static at::Tensor ids_of(const BertPass& pass);
  const std::vector<std::shared_ptr<BertUnit>>& units() const { return units_; }
  // Their names in named_modules(), in the same order: "bert.encoder.layer.0".
  const std::vector<std::string>& unit_names() const { return unit_names_; }
  // What the pooler gave -> logits.
  at::Tensor classify(const at::Tensor& pooled);

  const BertConfig& config() const { return config_; }
  const BertSplit& split() const { return split_; }

 private:
  BertConfig config_;
  BertSplit split_;
  std::shared_ptr<internal::BertEncoder> bert_;
  torch::nn::Linear classifier_;
  std::vector<std::shared_ptr<BertUnit>> units_;
  std::vector<std::string> unit_names_;
};

TORCH_MODULE(BertClassifier);

}  // namespace lockstep
