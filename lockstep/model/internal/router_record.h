// The counts of a pass's routers, and the routers' losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/model/lm_config.h"
#include "lockstep/model/lm_experts.h"

namespace lockstep::inline v0::internal {

// The record of one pass: its layers write it, its losses read it. One thread at a time.
class RouterRecord {
 public:
  RouterRecord(const LmConfig& config, const LmExperts& experts);

  // Counts a layer: its choices and, float32 or float64 [tokens, experts] on the CPU, its logits
  // and their shares. A layer that is computed again counts the same again.
  void count(int64_t layer, const std::vector<int64_t>& choices, int64_t left_out,
             const at::Tensor& logits, const at::Tensor& shares);
  std::vector<RouterStatistics> statistics() const;

  // Whether a coefficient is above 0 and a layer has counted.
  bool has_losses() const { return (balance_ > 0 || z_ > 0) && !sums_.empty(); }
  // The losses' value, of all ranks' sums. Collective where several ranks have tokens.
  double add_up();
  // Sets the gradient with respect to the losses' sum; it is 0 until backward sets it.
  void set_gradient(double gradient) { gradient_ = gradient; }
  // The losses' gradient with respect to a layer's logits; undefined where there is none.
  at::Tensor gradient_of(int64_t layer, const at::Tensor& logits) const;

 private:
  const at::Tensor& sums_of(int64_t layer) const;

  int64_t experts_, layers_;
  double balance_, z_;
  bool by_layer_;
  std::shared_ptr<const ExpertExchange> ranks_;  // whose tokens they are; null: this one's
  // Float64 sums per layer: choices [experts], shares [experts], logsumexp^2, entropy, tokens, left out.
  std::map<int64_t, at::Tensor> sums_;
  std::map<int64_t, at::Tensor> all_;  // the same of all ranks, where they were added up
  double gradient_ = 0;
};

// Logits as they are; in backward `part` of the losses' gradient is added.
at::Tensor watched_logits(const at::Tensor& logits, const std::shared_ptr<RouterRecord>& record,
                          int64_t layer, double part = 1);

}  // namespace lockstep::inline v0::internal
