// A layer's experts with their router, in the place of its MLP. Names of modules are Mixtral's, with a shared expert
// Qwen2-MoE's.
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::internal {

// An MLP that only gives its parameters their names.
class LmExpert : public torch::nn::Module {
 public:
  LmExpert(int64_t width, int64_t inner, const ExpertNames& names);
  torch::nn::Linear gate = nullptr, up = nullptr, down = nullptr;
  bool is_hooked();

 private:
  bool is_mixtral_;
};

class LmSparseMlp : public torch::nn::Module {
 public:
  LmSparseMlp(const LmConfig& config, const LmExperts& experts, int64_t layer);
  // The MLP of normed rows. The result is whole, not a part's share of a sum.
  at::Tensor work(const at::Tensor& rows, const internal::LmPass& pass, Arithmetic arithmetic);
  bool is_hooked();

 private:
  at::Tensor router_logits(const at::Tensor& rows, const internal::LmPass& pass,
                           Arithmetic arithmetic) const;
  at::Tensor of_experts(const at::Tensor& rows, const std::vector<int64_t>& counts,
                        const internal::LmPass& pass, Arithmetic arithmetic) const;
  // rows: those that its gate is asked about.
  at::Tensor of_shared(const at::Tensor& rows, const at::Tensor& entered,
                       const internal::LmPass& pass, Arithmetic arithmetic) const;

  int64_t layer_, all_, chosen_;
  double capacity_factor_;
  LmExperts part_;
  torch::nn::Linear gate_ = nullptr;
  std::vector<std::shared_ptr<LmExpert>> experts_;  // this part's
  std::shared_ptr<LmExpert> shared_;                // or none
  torch::nn::Linear shared_gate_ = nullptr;
};

}  // namespace lockstep::inline v0::internal
