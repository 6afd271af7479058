// The part of a model's experts that one of several ranks has (expert parallelism, GShard, Lepikhin et al.,
// arXiv:2006.16668), and what routers say of the tokens that they have seen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {
namespace internal {
struct LmPass;
}
using LmPass = std::shared_ptr<const internal::LmPass>;  // transformer_lm.h

// Rows that have come to this part's experts.
struct LmExpertRows {
  at::Tensor rows;  // [sum of counts, hidden_size], those of one expert after those of another
  std::vector<int64_t> counts;  // of each of this part's experts
  // Sends the experts' outputs back to where the rows came from: they return in the order of the
  // rows that were given to exchange(). Called once.
  std::function<at::Tensor(const at::Tensor& rows)> back;
};

// The exchange of rows among the ranks that divide a layer's experts, each of which has tokens of
// its own. Called on every rank in one order.
class LOCKSTEP_API ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // Rows that are sorted by expert, [sum of counts, hidden_size], with the number of each of all E experts, to the
  // parts that have them. `layer` is compared. In backward the gradients go the other way, so that a parameter of
  // an expert gets the mean over the parts of what their tokens' losses give it: what averaging over the ranks gives
  // the parameters that all have.
  virtual LmExpertRows exchange(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                int64_t layer) const = 0;
  // How many ranks have tokens of the batch of which the routers' losses are counted, and what adds up their float64
  // sums in place. The loss is then the whole batch's on each, and gradients are such that their mean is its gradient.
  virtual int64_t token_ranks() const = 0;
  virtual void combine(const at::Tensor& sums) const = 0;
};

// The experts of one part: part p of n has [p * E / n, (p + 1) * E / n) of E experts.
struct LmExperts {
  int64_t part = 0;
  int64_t parts = 1;  // divides num_local_experts
  // null: this part's are all, and so are this rank's tokens.
  std::shared_ptr<const ExpertExchange> ranks = nullptr;

  // The first of `experts` experts that this rank has.
  int64_t first(int64_t experts) const { return experts / parts * part; }
  // How many of them it has.
  int64_t count(int64_t experts) const { return experts / parts; }
  // How many ranks have tokens of their own.
  int64_t token_ranks() const { return ranks ? ranks->token_ranks() : 1; }
};

// The number of the expert whose parameter that is; -1: of none of those that are divided.
LOCKSTEP_API int64_t expert_of(std::string_view name);
// Whether a parameter is one of the experts that are divided: those are averaged over the ranks that have the same
// experts, all others over all. The shared expert is none of them.
LOCKSTEP_API bool is_expert_parameter(std::string_view name);

// The statistics of a layer's router over a pass's tokens: over those of all ranks where the
// routers' losses have been counted (ExpertExchange::combine), otherwise over this rank's.
struct RouterStatistics {
  int64_t layer = 0;
  std::vector<int64_t> choices;  // of each expert, those that were left out among them
  int64_t left_out = 0;          // choices beyond an expert's capacity
  double entropy =
      0;  // of the shares, the mean over tokens, in nats: log(experts) where all are equal; 0 without tokens
  // The layer's loss of load balancing without its coefficient, counted or not: experts * sum over experts of
  // (choices / tokens) * (mean share); num_experts_per_tok where all are equal.
  double balance = 0;
};
// The statistics of a pass's layers so far, in order; empty for a model without experts.
LOCKSTEP_API std::vector<RouterStatistics> router_statistics(const LmPass& pass);

// The routers' losses of the layers that a pass has gone through, times their coefficients; for code that computes the
// loss by steps, as a pipeline does. `rows` must be of the pass, behind its layers: `rows` of the result are the same,
// and what the result's gradients are computed from must use them, since routers learn theirs from that of `loss`
// when backward comes by there. Layers that are computed again in backward (activation checkpointing) are right, too.
// loss() of a model in training does this by itself. Collective where several ranks have tokens (ExpertExchange). Once a pass.
struct WithRouterLosses {
  at::Tensor rows;
  at::Tensor loss;  // a number; undefined where there are no coefficients or no experts
};
LOCKSTEP_API WithRouterLosses router_losses(const at::Tensor& rows, const LmPass& pass);
// The same where the loss is elsewhere: rows as they are, whose backward adds `scale` times the gradient of these
// losses. Each pass counts the layers that it has gone through, in proportion: so with router_aux_loss_by_layer the
// losses of a pipeline's stages add up to the whole model's.
LOCKSTEP_API at::Tensor attach_router_losses(const at::Tensor& rows, const LmPass& pass,
                                             double scale);

}  // namespace lockstep::inline v0
