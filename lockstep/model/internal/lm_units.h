// The units of TransformerLm. Names of modules are transformers'.
//
// A layer whose Linear has hooks (hooks/forward_hook.h), a replacement among them, is computed in the
// composed form, which calls it.
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/lm_sparse.h"
#include "lockstep/model/internal/router_record.h"
#include "lockstep/model/lm_cache.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"

namespace lockstep::inline v0::internal {

struct LmPass {
  std::shared_ptr<const CausalLayout> layout;
  RotaryTable rotary;
  uint64_t dropout_seed = 0;  // 0: nothing is dropped
  std::shared_ptr<DeferredGradients> deferred;
  std::optional<int64_t>
      counted;  // of this rank's rows the first so many are none of padding; or all
  std::shared_ptr<RouterRecord> routers;         // null: no experts, or no counts
  LmCache* cache = nullptr;                      // of sequences of equal length
  std::shared_ptr<const hooks::ModelPart> part;  // null: layers are whole
  // Where only some of the batch's rows are here (lm_context.h), with which these are.
  std::shared_ptr<const hooks::TokenPart> tokens;
  at::Tensor own_rows;
};

// Where dropout is, within a unit.
enum class LmPlace : uint64_t { kEmbeddings, kWeights, kAttention, kMlp };
// The dropout of one place in one unit of a pass.
kernels::Dropout dropout_at(const internal::LmPass& pass, int64_t unit, LmPlace place,
                            double probability);

// Rows as a divided product takes them.
at::Tensor enter_part(const at::Tensor& x, const internal::LmPass& pass);
bool has_own_rows(const internal::LmPass& pass);  // each part, between the products
// A parameter that all parts have, for rows of which each has its own or all.
at::Tensor of_all_rows(const at::Tensor& parameter, const internal::LmPass& pass);

// A module that only gives its parameter a name.
class LmNorm : public torch::nn::Module {
 public:
  explicit LmNorm(int64_t width);
  at::Tensor weight;
};

class LmEmbedding final : public LmUnit {
 public:
  explicit LmEmbedding(const LmConfig& config);
  at::Tensor weight;  // [this part's words, hidden_size]

 private:
  at::Tensor compute(const at::Tensor& ids, const lockstep::LmPass& pass) override;
  // The rows of the ids that this part has; zeros for the other ids.
  at::Tensor own_words(const at::Tensor& ids, const hooks::ModelPart& part) const;
  double dropout_;
  int64_t words_;  // of the whole vocabulary
};

class LmAttention : public torch::nn::Module {
 public:
  LmAttention(const LmConfig& config, int64_t index);
  // Attention of normed rows. The result is whole, not a part's share of a sum.
  at::Tensor attend(const at::Tensor& rows, const internal::LmPass& pass, Arithmetic arithmetic);
  bool is_hooked();

 private:
  // Queries, keys and values of rows that entered.
  std::vector<at::Tensor> project(const at::Tensor& rows, const internal::LmPass& pass,
                                  Arithmetic arithmetic) const;
  at::Tensor with_cache(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const internal::LmPass& pass) const;

  CausalHeads heads_of(const internal::LmPass& pass) const;

  int64_t index_;
  CausalHeads heads_;  // of the whole layer
  double dropout_;
  torch::nn::Linear query_ = nullptr, key_ = nullptr, value_ = nullptr, out_ = nullptr;
};

class LmMlp : public torch::nn::Module {
 public:
  explicit LmMlp(const LmConfig& config);
  at::Tensor work(const at::Tensor& rows, const internal::LmPass& pass, Arithmetic arithmetic);
  bool is_hooked();

 private:
  torch::nn::Linear gate_ = nullptr, up_ = nullptr, down_ = nullptr;
};

class LmLayer final : public LmUnit {
 public:
  LmLayer(const LmConfig& config, const LmExperts& experts, int64_t index);

 private:
  at::Tensor compute(const at::Tensor& rows, const lockstep::LmPass& pass) override;
  Arithmetic arithmetic();
  at::Tensor work(const at::Tensor& rows, const internal::LmPass& pass, Arithmetic arithmetic) {
    return mlp_ ? mlp_->work(rows, pass, arithmetic) : sparse_->work(rows, pass, arithmetic);
  }

  int64_t unit_;
  double epsilon_, dropout_;
  std::shared_ptr<LmAttention> attention_;
  std::shared_ptr<LmMlp> mlp_;           // or
  std::shared_ptr<LmSparseMlp> sparse_;  // experts
  std::shared_ptr<LmNorm> input_norm_, second_norm_;
};

class LmLastNorm final : public LmUnit {
 public:
  explicit LmLastNorm(const LmConfig& config);
  at::Tensor weight;

 private:
  at::Tensor compute(const at::Tensor& rows, const lockstep::LmPass& pass) override;
  double epsilon_;
};

// Logits. With tied embeddings it has no parameter, and multiplies by theirs.
class LmHead final : public LmUnit {
 public:
  LmHead(const LmConfig& config, std::shared_ptr<LmEmbedding> tied);
  // next_token_loss() of the logits, without all of them; or their sum divided by `divide_by`.
  at::Tensor loss(const at::Tensor& rows, const at::Tensor& targets, const internal::LmPass& pass,
                  double divide_by = 0);
  // token_scores() of them, likewise.
  TokenScores scores(const at::Tensor& rows, const at::Tensor& targets,
                     const internal::LmPass& pass);

 private:
  at::Tensor compute(const at::Tensor& rows, const lockstep::LmPass& pass) override;
  VocabularyPart words_of(const internal::LmPass& pass) const;
  const at::Tensor& weight() const { return tied_ ? tied_->weight : weight_; }
  at::Tensor weight_;
  std::shared_ptr<LmEmbedding> tied_;
  int64_t words_;  // of the whole vocabulary
};

}  // namespace lockstep::inline v0::internal
