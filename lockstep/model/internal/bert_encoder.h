// The parts of BertClassifier below its classifier; names of modules are transformers'.
//
// A child that has hooks (hooks/forward_hook.h), a replacement among them, is called; the nodes go on with
// what it gives. A layer has as many heads as its queries have columns for: all, or those that a plan leaves
// to this rank (shard/parallelize.h). A child that torch::nn::Module::replace_module put there is held instead
// of the former one where it is of the same type and shape (follow.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>

#include "lockstep/hooks/layer_hook.h"
#include "lockstep/model/attention.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/bert_nodes.h"

namespace lockstep::inline v0::internal {

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
  std::shared_ptr<const hooks::LayerPart> part = nullptr;  // BertEncoder::part()
};

// One of a unit's dropouts in one forward.
struct Mask {
  double probability = 0;      // 0 in evaluation
  kernels::Dropout rows = {};  // on the CPU; elsewhere the device's generator draws
};

// dense, dropout, + residual, norm.
class BertOutput : public torch::nn::Module {
 public:
  BertOutput(const BertConfig& config, int64_t inputs);
  LayerRows rows(const LayerRows& x, const at::Tensor& residual, const Mask& mask, Arithmetic how);

 private:
  torch::nn::Linear dense_;
  torch::nn::LayerNorm norm_;
};

class BertLayer final : public BertUnit {
 public:
  // `first_only`: for the sequences' first rows alone.
  BertLayer(const BertConfig& config, bool first_only);
  // compute(), with the rows as products read them as well.
  LayerRows rows(const LayerRows& given, const BertPass& pass);

 private:
  at::Tensor compute(const at::Tensor& x, const lockstep::BertPass& pass) override;
  at::Tensor attend(const LayerRows& asking, const LayerRows& x, const BertPass& pass,
                    const Mask& mask);

  BertConfig config_;
  bool first_only_;
  // Modules that only give their parameters the names that transformers has.
  std::shared_ptr<torch::nn::Module> self_, inner_;
  torch::nn::Linear query_, key_, value_, intermediate_;
  std::shared_ptr<BertOutput> attention_output_, output_;
};

class BertEmbeddings final : public BertUnit {
 public:
  explicit BertEmbeddings(const BertConfig& config);
  LayerRows rows(const at::Tensor& ids, const BertPass& pass);
  // For all units: by the device and type of the parameters, and autocast.
  Arithmetic arithmetic() const;

 private:
  at::Tensor compute(const at::Tensor& ids, const lockstep::BertPass& pass) override;
  // Words, types and positions, before the norm.
  at::Tensor sum(const at::Tensor& ids, const BertBatch& batch);

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
  explicit BertEncoder(const BertConfig& config);
  lockstep::BertPass pass(const BertBatch& given) const;
  // In training, where children are divided among ranks: one of them.
  std::shared_ptr<const hooks::LayerPart> part() const;
  at::Tensor forward(const lockstep::BertPass& pass);

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  torch::nn::ModuleList layers_;
  std::shared_ptr<BertPooler> pooler_;
};

}  // namespace lockstep::inline v0::internal
