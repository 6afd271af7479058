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
// norm, the product with the vocabulary. Whoever shards, checkpoints or divides it among pipeline stages
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

#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/initial_parameters.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/model/lm_experts.h"

namespace lockstep {

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
class LmUnit : public torch::nn::Module,
               public Hookable<at::Tensor(const at::Tensor&, const LmPass&)> {
 public:
  using Signature = at::Tensor(const at::Tensor&, const LmPass&);
};

// The part of a model that one of several ranks has, where each layer is divided among them (tensor
// parallelism, Shoeybi et al., arXiv:1909.08053): heads and inner columns, evenly; the vocabulary where
// combine() is given. The functions are called on every rank in one order.
struct LmSplit {
  int64_t part = 0;
  // Divides num_attention_heads and intermediate_size; and key_value_heads, or is a multiple of those.
  int64_t parts = 1;
  // Before a divided product: rows as they are; in backward their gradients are added up over the parts.
  std::function<at::Tensor(const at::Tensor& rows)> enter = {};
  // After one: rows added up over the parts; in backward as they are.
  std::function<at::Tensor(const at::Tensor& rows)> leave = {};
  // VocabularyPart::combine (vocabulary_loss.h). Where it is given, the part has the embeddings' and the head's
  // rows [vocabulary_begin(size, part), vocabulary_begin(size, part + 1)), and needs the others here too.
  std::function<void(const at::Tensor& statistics)> combine = {};
  // Sequence parallelism (Korthikanti et al., arXiv:2205.05198): between the divided products each part has its own
  // rows only, own_rows(tokens), and its units take and give those. enter() then gives all parts' rows in order, leave()
  // this part's rows of the sum; in backward the other way round. With combine. The number of a pass's tokens divides.
  bool divides_rows = false;
  // With it: a parameter that each part has whole and uses for its own rows; its gradient is added up over the parts.
  std::function<at::Tensor(const at::Tensor& parameter)> share = {};
  // Where parts are more than key_value_heads, so that neighbours have the same head: its parameter as it is; in
  // backward its gradient is added up over the parts that have it. At any time of backward, whatever is deferred.
  std::function<at::Tensor(const at::Tensor& parameter)> share_head = {};
  // Logits [tokens, this part's rows] -> [tokens, vocab_size]; in backward this part's columns of the gradient.
  std::function<at::Tensor(const at::Tensor& logits)> gather = {};
  // What part 0 has drawn as a pass's dropout_seed, on every part. Without it, passes that drop are given one.
  std::function<uint64_t(uint64_t drawn)> agree = {};

  // Sizes differ by one at most.
  int64_t vocabulary_begin(int64_t vocab_size, int64_t of_part) const {
    return combine ? vocab_size * of_part / parts : (of_part > part ? vocab_size : 0);
  }
  // How many heads of keys and values this part has, of a model's.
  int64_t own_key_heads(int64_t key_value_heads) const {
    return key_value_heads < parts ? 1 : key_value_heads / parts;
  }
  // How many of a pass's tokens are rows between the units here.
  int64_t own_rows(int64_t tokens) const { return divides_rows ? tokens / parts : tokens; }
};

// A call of a whole model, as its hooks see it.
struct LmCall {
  enum class Gives : uint8_t {
    kLogits,
    kLoss,
    kScores,  // float64 [N, 2]: TokenScores' losses, and 1 for those that are the likeliest
  };
  at::Tensor ids, lengths, targets;  // forward()'s
  Gives gives = Gives::kLogits;
};

// The rows of a batch that one of several ranks has, where the tokens of its sequences are divided among them (context
// parallelism). The ranks have equal models, or equal parts of one, and are given the same batches. The functions
// are called on all of them in one order, with the lengths of the whole batch's sequences.
//
// loss() and head_loss() then have the value of the whole batch's loss on every rank, and `parts` times the
// gradient of this rank's share: the average over the ranks, as DistributedDataParallel makes it, is the whole batch's.
struct LmContext {
  int64_t parts = 1;
  // This rank's rows, ascending; perhaps none. Sends nothing.
  std::function<std::vector<int64_t>(const std::vector<int64_t>& lengths)> rows = {};
  // How many rows each rank has. For LmSplit::divides_rows: without it each rank looks at its own alone.
  std::function<std::vector<int64_t>(const std::vector<int64_t>& lengths)> counts = {};
  // Attention of this rank's rows to all rows of their sequences that are not behind them: queries [rows, heads,
  // width], keys and values [rows, key_value_heads, width], whose positions are in them -> [rows, heads, width].
  // Differentiable.
  std::function<at::Tensor(const at::Tensor& queries, const at::Tensor& keys,
                           const at::Tensor& values, const std::vector<int64_t>& lengths)>
      attend = {};
  // All ranks' rows, in the batch's order, of this rank's [rows, columns]. Without gradients.
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& lengths)> gather =
      {};
  // float64 numbers, added up over the ranks in place.
  std::function<void(const at::Tensor& numbers)> sum = {};
  // At the begin of every pass: throws where the ranks' lengths or ids (undefined in pass()) differ. Gives what the
  // first rank has drawn as dropout_seed.
  std::function<uint64_t(const std::vector<int64_t>& lengths, const at::Tensor& ids,
                         uint64_t drawn)>
      agree = {};
  // Throws InvalidArgument for heads (those of a part of the model) that attend() does not take. May be empty.
  std::function<void(int64_t heads, int64_t key_value_heads)> check_heads = {};
};

struct LmOptions {
  InitialParameters initial = InitialParameters::kDrawn;
  LmSplit split = {};
  LmExperts experts = {};
  LmContext context = {};
};

struct LmPassOptions {
  // Of the first row in the batch that dropout is drawn for: parts of a batch then drop what the whole
  // batch does, given one seed.
  int64_t first_row = 0;
  // Drawn from the default generator where it is 0 and the model drops anything; parts need one.
  uint64_t dropout_seed = 0;
  // So many of the last sequences are there to fill rows up, without targets: no expert gets their tokens, and routers
  // neither count them nor learn from them.
  int64_t padding = 0;
  // The products' gradients of weights are not computed in backward but by run_deferred(), into grad();
  // nullptr: in backward. Not where a layer is computed in the composed form (another device or type, a
  // Linear with hooks). run_deferred() is a backward of its own, in which they arrive for whoever watches
  // (flat/backward_watch.h). DistributedDataParallel, ZeRO and Horovod await all gradients in one: with them
  // both are put into one node's backward, as parallel/pipeline does (flat::OuterBackward).
  std::shared_ptr<internal::DeferredGradients> deferred = nullptr;
};

// lm->forward_hooks().add(hook) puts a hook around forward(), loss() and scores(), which are one call each.
class TransformerLmImpl : public torch::nn::Module, public Hookable<at::Tensor(const LmCall&)> {
 public:
  // On the CPU, in float32; the numbers are decided by the default generator's state. Throws
  // InvalidArgument (check(config); a part that is to be drawn; what does not divide among the parts; a context with
  // attention_dropout; one with experts whose routers' losses are not combined).
  explicit TransformerLmImpl(const LmConfig& config = {}, LmOptions options = {});

  // ids int64 [B, T] -> logits [B, T, vocab_size]; or packed: ids int64 [N], sequences end to end, with
  // their lengths int64 [sequences] on the CPU, which sum to N -> [N, vocab_size]. A token sees itself and
  // those before it in its sequence. Throws InvalidArgument: other shapes, an id outside the vocabulary
  // (on the CPU), a sequence that is empty or longer than max_position_embeddings.
  //
  // With LmOptions::context every rank gives the whole batch and computes its rows. All logits are then gathered
  // on every rank; a loss that all compute of them alike has head_loss()'s gradients.
  //
  // With targets, of the shape of ids: loss(), for who calls forward() only, as strategies do.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& lengths = {},
                     const at::Tensor& targets = {});
  // next_token_loss() of forward(), a scalar, by head_loss(); in training with the routers' losses
  // (router_losses()). Throws InvalidArgument as well: targets of
  // another shape or type, one outside the vocabulary that is not -100.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& lengths = {});
  // What each token loses (vocabulary_loss.h), in the order of ids, of the same arguments. Without gradients and
  // without the logits' memory, as far as the head is not hooked.
  TokenScores scores(const at::Tensor& ids, const at::Tensor& targets,
                     const at::Tensor& lengths = {});

  // The same step by step: pass(), then the units in order, each with what the one before gave. With
  // LmOptions::context the units take and give the rows own_rows(lengths), and pass() is collective.
  LmPass pass(const std::vector<int64_t>& lengths, const LmPassOptions& options = {});
  // Which rows of a batch of such sequences, end to end, units compute here: int64, ascending. All of them without
  // LmOptions::context. Sends nothing.
  at::Tensor own_rows(const std::vector<int64_t>& lengths) const;
  const std::vector<std::shared_ptr<LmUnit>>& units() const { return units_; }
  // Their names in named_modules(), in the same order.
  const std::vector<std::string>& unit_names() const { return unit_names_; }

  // What the routers did in the last pass() (lm_experts.h).
  std::vector<RouterStatistics> routers() const;

  // Tokens behind those that `cache` has: ids int64 [B, n] -> logits of each sequence's last one,
  // [B, vocab_size]. Without gradients. Throws InvalidArgument if the cache is full or of other shapes, with
  // LmOptions::context, or where the model has hooks, which would not see it.
  at::Tensor next(const at::Tensor& ids, LmCache& cache);

  // Of a model made with kNone: the values that kDrawn would have given it, a part at a time: of the parameter
  // of that name the elements [begin, begin + part.numel()) into `part`, 1-D and contiguous, float32 on the
  // CPU. For a model that no rank has whole (ZeroOptions::initial): ranks whose default generators stood at
  // one state when they made it get parts of one model. Keeps nothing of the model. The function throws
  // InvalidArgument for a name that is none; this one, where the values were drawn.
  std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> drawn_parts()
      const;

  const LmConfig& config() const { return config_; }
  const LmSplit& split() const { return split_; }

 private:
  at::Tensor compute(const LmCall& call) override;
  at::Tensor logits(const LmCall& call);
  void add_unit(const std::string& name, std::shared_ptr<LmUnit> unit);
  // What the last unit is given, and the pass; targets are checked.
  std::pair<at::Tensor, LmPass> before_head(const LmCall& call);
  internal::RotaryTable rotary(int64_t positions);  // of at least so many
  LmPass pass_of(const std::vector<int64_t>& lengths, const at::Tensor& ids,
                 const LmPassOptions& options);
  // This rank's of a batch's ids or targets.
  at::Tensor own_of(const at::Tensor& flat, const LmPass& pass) const;

  LmConfig config_;
  LmSplit split_;
  LmExperts experts_;
  std::shared_ptr<internal::RouterRecord> counted_;  // in the last pass
  std::shared_ptr<const LmContext> context_;         // none: all rows are here
  std::vector<uint64_t> seeds_;  // of the matrices' values, where nobody drew them
  std::vector<std::shared_ptr<LmUnit>> units_;
  std::vector<std::string> unit_names_;
  at::Tensor frequencies_;      // of rotations
  at::Tensor cosines_, sines_;  // of the positions needed so far
};

TORCH_MODULE(TransformerLm);

// The mean over all tokens of the negative log-probability of what comes next, in nats: logits
// [.., vocab_size], of 16 bits computed in float32; targets int64 [..], -100 where there is nothing to
// predict.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

// next_token_loss() of what a model's last unit gives for `rows`, by vocabulary_loss() (vocabulary_loss.h), which
// never has all logits: for a pipeline's last stage. targets int64 [tokens]. Where the unit is hooked, its logits
// are computed, and its hooks see them. Deferred gradients are computed in forward, and added by
// run_deferred(). Of a context's rows it is the whole batch's loss (LmContext), targets are those of own_rows(), and
// 16 bytes are added up over the ranks; it is collective. Throws InvalidArgument: a unit that is not the last one, otherwise as vocabulary_loss().
at::Tensor head_loss(LmUnit& head, const at::Tensor& rows, const at::Tensor& targets,
                     const LmPass& pass);

// The same for TransformerLmImpl::scores(): what each token of `rows` loses.
TokenScores head_scores(LmUnit& head, const at::Tensor& rows, const at::Tensor& targets,
                        const LmPass& pass);

// Computes the weights' gradients that backwards have left (LmPassOptions::deferred) into grad(), as a
// backward of its own.
std::shared_ptr<internal::DeferredGradients> make_deferred();
void run_deferred(internal::DeferredGradients& deferred);

}  // namespace lockstep
