// The parts of BertClassifier below its classifier; names of modules are transformers'.
//
// A part whose child has hooks (hooks/forward_hook.h), a replacement among them, is computed in the
// composed form, which calls its children. One that torch::nn::Module::replace_module put there is
// held instead of the former one where it is of the same type and shape (follow.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>

#include "lockstep/model/attention.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/layer_node.h"

namespace lockstep::internal {

// A checked batch: its tokens as rows, sequence after sequence.
struct BertBatch {
  at::Tensor ids, types;  // int64 [rows]; types may be undefined
  at::Tensor positions;   // int64 [rows]; undefined where every sequence is `length` rows
  int64_t sequences = 0;
  int64_t length = 0;      // rows of every sequence; 0 if they differ
  at::Tensor first;        // int64 [sequences]: the rows of the first tokens
  AttentionLayout layout;  // every row looks at its sequence
};

// Throws InvalidArgument (see BertClassifier).
BertBatch padded_batch(const BertConfig& config, const at::Tensor& ids, const at::Tensor& mask,
                       const at::Tensor& types);
BertBatch packed_batch(const BertConfig& config, const at::Tensor& ids, const at::Tensor& types,
                       const at::Tensor& lengths);

// The same batch with rows of padding behind the last sequence, which look at each other, up to a
// multiple of `rows`. Nothing depends on them.
BertBatch with_whole_rows(BertBatch batch, int64_t rows);

struct BertPass {
  BertBatch batch;
  Arithmetic arithmetic = Arithmetic::kComposed;
};

// dense, dropout, + residual, norm.
class BertOutput : public torch::nn::Module {
 public:
  BertOutput(const BertConfig& config, int64_t inputs);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

  const torch::nn::Linear& dense() const { return dense_; }
  const torch::nn::LayerNorm& norm() const { return norm_; }
  void follow_children();

 private:
  double dropout_;
  torch::nn::Linear dense_;
  torch::nn::LayerNorm norm_;
};

class BertLayer final : public BertUnit {
 public:
  // `first_only`: for the sequences' first rows alone.
  BertLayer(const BertConfig& config, const BertSplit& split, bool first_only);
  // compute(), with the rounded rows as well.
  LayerRows rows(const LayerRows& x, const BertPass& pass);

 private:
  at::Tensor compute(const at::Tensor& x, const lockstep::BertPass& pass) override;
  at::Tensor composed(const at::Tensor& x, const at::Tensor& asking, const AttentionLayout& layout);
  LayerParameters layer_parameters() const;
  void follow_children();

  BertConfig config_;
  BertSplit split_;
  bool first_only_;
  // Modules that only give their parameters the names that transformers has.
  std::shared_ptr<torch::nn::Module> self_, inner_;
  torch::nn::Linear query_, key_, value_, intermediate_;
  std::shared_ptr<BertOutput> attention_output_, output_;
};

class BertEmbeddings final : public BertUnit {
 public:
  BertEmbeddings(const BertConfig& config, const BertSplit& split);
  LayerRows rows(const at::Tensor& ids, const BertPass& pass);
  // For all units: by the device and type of the parameters, and autocast.
  Arithmetic arithmetic() const;

 private:
  at::Tensor compute(const at::Tensor& ids, const lockstep::BertPass& pass) override;
  at::Tensor composed(const at::Tensor& ids, const BertBatch& batch);
  // Words, types and positions, before the norm; the words' rows as they were found.
  at::Tensor sum(const at::Tensor& words, const at::Tensor& ids, const BertBatch& batch);
  void follow_children();

  BertConfig config_;
  BertSplit split_;
  double dropout_;
  torch::nn::Embedding words_, positions_, types_;
  torch::nn::LayerNorm norm_;
};

// [sequences, hidden_size] -> the same.
class BertPooler final : public BertUnit {
 public:
  explicit BertPooler(const BertConfig& config);

 private:
  at::Tensor compute(const at::Tensor& x, const lockstep::BertPass& pass) override;
  torch::nn::Linear dense_;
};

// Embeddings, layers, pooler -> [sequences, hidden_size].
class BertEncoder : public torch::nn::Module {
 public:
  BertEncoder(const BertConfig& config, const BertSplit& split);
  lockstep::BertPass pass(const BertBatch& given) const;
  at::Tensor forward(const lockstep::BertPass& pass);

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  torch::nn::ModuleList layers_;
  std::shared_ptr<BertPooler> pooler_;
};

}  // namespace lockstep::internal
