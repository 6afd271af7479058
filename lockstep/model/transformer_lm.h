// TransformerLm: a decoder-only language model, as transformers' LlamaForCausalLM: rotary positions
// (Su et al., arXiv:2104.09864), RMS norm (arXiv:1910.07467), SwiGLU (arXiv:2002.05202), heads of queries
// that share heads of keys (Ainslie et al., arXiv:2305.13245). Parameters have its names
// ("model.layers.0.self_attn.q_proj.weight"), so that files are exchanged as they are.
//
//   TransformerLm lm(lm_preset("mini"));
//   at::Tensor logits = lm(ids);                        // int64 [B, T] -> [B, T, vocab_size]
//   at::Tensor loss = next_token_loss(logits, targets); // targets: ids one place further
//   at::Tensor same = lm->loss(ids, targets);           // faster, and without the logits' memory
//
// A model is a list of units with one signature, tokens as rows in and out: embeddings, layers, the last
// norm, the product with the vocabulary. Code that shards, checkpoints or divides it among pipeline stages
// works on that list; each unit is Hookable (hooks/forward_hook.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/hooks/division.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/initial_parameters.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/model/lm_experts.h"

namespace lockstep::inline v0 {

struct LmCache;      // lm_cache.h
struct TokenScores;  // vocabulary_loss.h
namespace internal {
struct LmPass;
struct RotaryTable;
class RouterRecord;
class DeferredGradients;
}  // namespace internal

// One forward: what all its units are given beside their rows. Made by TransformerLm::pass(), or by a
// pipeline's stage for itself; a copy is a handle.
using LmPass = std::shared_ptr<const internal::LmPass>;

// Rows [tokens, hidden_size] to rows; the first unit takes ids, int64 [tokens], the last gives logits.
class LOCKSTEP_API LmUnit : public torch::nn::Module,
                            public Hookable<at::Tensor(const at::Tensor&, const LmPass&)> {
 public:
  using Signature = at::Tensor(const at::Tensor&, const LmPass&);
};

// A call of a whole model, as its hooks see it.
struct LmCall {
  // What a call returns.
  enum class Gives : uint8_t {
    kLogits,
    kLoss,
    kScores,  // float64 [N, 2]: TokenScores' losses, and 1 for those that are the likeliest
  };
  at::Tensor ids, lengths, targets;  // forward()'s
  Gives gives = Gives::kLogits;
};

// The options of a TransformerLm.
struct LmOptions {
  InitialParameters initial = InitialParameters::kDrawn;  // values of the parameters
  LmExperts experts = {};                                 // those that this rank has
};

// The options of one pass through the layers.
struct LmPassOptions {
  // The number of the pass's first row in the batch that dropout is drawn for: given one seed,
  // parts of a batch then drop what the whole batch does.
  int64_t first_row = 0;
  // Drawn from the default generator where it is 0 and the model drops anything; parts need one.
  uint64_t dropout_seed = 0;
  // So many of the last sequences are there to fill rows up, without targets: no expert gets their tokens, and routers
  // neither count them nor learn from them.
  int64_t padding = 0;
  // The products' gradients of weights are not computed in backward but by run_deferred(), into grad();
  // nullptr: in backward. Not where a layer is computed in the composed form (another device or type, a
  // Linear with hooks). run_deferred() is a backward of its own, in which they arrive at the watches
  // (flat/backward_watch.h). DistributedDataParallel, ZeRO and Horovod await all gradients in one: with them
  // both are put into one node's backward, as parallel/pipeline does (flat::OuterBackward).
  std::shared_ptr<internal::DeferredGradients> deferred = nullptr;
};

// lm->forward_hooks().add(hook) puts a hook around forward(), loss() and scores(), which are one call each. It is divided
// from outside: parallelize() (shard/parallelize.h), context_parallel_lm(), or what they call.
class LOCKSTEP_API TransformerLmImpl : public torch::nn::Module,
                                       public Hookable<at::Tensor(const LmCall&)>,
                                       public hooks::Divisible {
 public:
  // On the CPU, in float32; the numbers are decided by the default generator's state. Throws
  // InvalidArgument (check(config); a part of the experts that is to be drawn, or that they do not divide into).
  explicit TransformerLmImpl(const LmConfig& config = {}, LmOptions options = {});

  // ids int64 [B, T] -> logits [B, T, vocab_size]; or packed: ids int64 [N], sequences end to end, with
  // their lengths int64 [sequences] on the CPU, which sum to N -> [N, vocab_size]. A token sees itself and
  // those before it in its sequence. Throws InvalidArgument: other shapes, an id outside the vocabulary
  // (on the CPU), a sequence that is empty or longer than max_position_embeddings.
  //
  // With take_tokens() every rank gives the whole batch and computes its rows. All logits are then gathered
  // on every rank; a loss that all compute of them alike has head_loss()'s gradients.
  //
  // With targets, of the shape of ids: loss(), for who calls forward() only, as strategies do.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& lengths = {},
                     const at::Tensor& targets = {});
  // next_token_loss() of forward(), a scalar, by head_loss(); in training with the routers' losses
  // (router_losses()). Throws InvalidArgument as well: targets of
  // another shape or type, one outside the vocabulary that is not -100.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& lengths = {});
  // The loss of each token (vocabulary_loss.h), in the order of ids, for the same arguments.
  // Without gradients, and without the logits' memory unless the head is hooked.
  TokenScores scores(const at::Tensor& ids, const at::Tensor& targets,
                     const at::Tensor& lengths = {});

  // The same step by step: pass(), then the units in order, each with what the one before gave. With
  // take_tokens() the units take and give the rows own_rows(lengths), and pass() is collective.
  LmPass pass(const std::vector<int64_t>& lengths, const LmPassOptions& options = {});
  // Which rows of a batch of such sequences, end to end, units compute here: int64, ascending. All of them without
  // take_tokens(). Sends nothing.
  at::Tensor own_rows(const std::vector<int64_t>& lengths) const;
  const std::vector<std::shared_ptr<LmUnit>>& units() const { return units_; }
  // Their names in named_modules(), in the same order.
  const std::vector<std::string>& unit_names() const { return unit_names_; }

  // The routers' statistics of the last pass() (lm_experts.h).
  std::vector<RouterStatistics> routers() const;

  // Tokens behind those that `cache` has: ids int64 [B, n] -> logits of each sequence's last one,
  // [B, vocab_size]. Without gradients. Throws InvalidArgument if the cache is full or of other shapes, of a
  // divided model, or where the model has hooks, which would not see it.
  at::Tensor next(const at::Tensor& ids, LmCache& cache);

  // For a model made with kNone: a function that gives the values that kDrawn would have given it, a part at a
  // time. It writes the elements [begin, begin + part.numel()) of the parameter `name` into `part`, 1-D and
  // contiguous, float32 on the CPU. For a model that no rank has whole (ZeroOptions::initial): ranks whose
  // default generators stood at one state when they made it get parts of one model. Keeps nothing of the
  // model. It throws InvalidArgument for an unknown name; drawn_parts() does where the values were drawn.
  std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> drawn_parts()
      const;

  // hooks::Divisible. Throw InvalidArgument: heads that do not divide; tokens with attention_dropout, or with experts
  // whose routers' losses are not combined.
  int64_t divided_dim(const std::string& parameter) const override;
  void take_part(std::shared_ptr<const hooks::ModelPart> part) override;
  void take_tokens(std::shared_ptr<const hooks::TokenPart> tokens) override;

  const LmConfig& config() const { return config_; }            // as given
  const hooks::ModelPart* part() const { return part_.get(); }  // null: layers are whole

 private:
  at::Tensor compute(const LmCall& call) override;
  at::Tensor logits(const LmCall& call);
  void add_unit(const std::string& name, std::shared_ptr<LmUnit> unit);
  // Returns the last unit's input, and the pass; checks the targets.
  std::pair<at::Tensor, LmPass> before_head(const LmCall& call);
  internal::RotaryTable rotary(int64_t positions);  // of at least so many
  LmPass pass_of(const std::vector<int64_t>& lengths, const at::Tensor& ids,
                 const LmPassOptions& options);
  // This rank's of a batch's ids or targets.
  at::Tensor own_of(const at::Tensor& flat, const LmPass& pass) const;

  void check_heads() const;

  LmConfig config_;
  LmExperts experts_;
  std::shared_ptr<internal::RouterRecord> counted_;  // in the last pass
  std::shared_ptr<const hooks::ModelPart> part_;     // none: layers are whole
  std::shared_ptr<const hooks::TokenPart> tokens_;   // none: all rows are here
  std::vector<uint64_t> seeds_;  // of the matrices' values, where these are not drawn
  std::vector<std::shared_ptr<LmUnit>> units_;
  std::vector<std::string> unit_names_;
  at::Tensor frequencies_;      // of rotations
  at::Tensor cosines_, sines_;  // of the positions needed so far
};

TORCH_MODULE(TransformerLm);

// Makes `to`, which has the parameters of `from` or some of them, its copy: their values, their type, what requires a
// gradient, training or not.
LOCKSTEP_API void take_values(TransformerLm& to, const TransformerLm& from);

// The mean over all tokens of the negative log-probability of what comes next, in nats: logits
// [.., vocab_size], of 16 bits computed in float32; targets int64 [..], -100 where there is nothing to
// predict.
LOCKSTEP_API at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

// next_token_loss() of what a model's last unit gives for `rows`, by vocabulary_loss() (vocabulary_loss.h), which
// never has all logits: for a pipeline's last stage. targets int64 [tokens]. Where the unit is hooked, its logits
// are computed, and its hooks see them. Deferred gradients are computed in forward, and added by
// run_deferred(). Of some tokens it is the whole batch's loss (hooks::TokenPart), targets are those of own_rows(), and
// 16 bytes are added up over the ranks; it is collective. Throws InvalidArgument: a unit that is not the last one, otherwise as vocabulary_loss().
LOCKSTEP_API at::Tensor head_loss(LmUnit& head, const at::Tensor& rows, const at::Tensor& targets,
                                  const LmPass& pass);

// The same for TransformerLmImpl::scores(): what each token of `rows` loses.
LOCKSTEP_API TokenScores head_scores(LmUnit& head, const at::Tensor& rows,
                                     const at::Tensor& targets, const LmPass& pass);

// Computes the weights' gradients that backwards have left (LmPassOptions::deferred) into grad(), as a
// backward of its own.
LOCKSTEP_API std::shared_ptr<internal::DeferredGradients> make_deferred();
LOCKSTEP_API void run_deferred(internal::DeferredGradients& deferred);

}  // namespace lockstep::inline v0
