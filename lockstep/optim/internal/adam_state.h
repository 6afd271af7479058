// The state of Adam and AdamW.
#pragma once

#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::inline v0::optim::internal {

template <typename Options, typename State>
class AdamStateKind final : public StateKind {
 public:
  size_t count(const torch::optim::OptimizerOptions& options) const override {
    return static_cast<const Options&>(options).amsgrad() ? 3 : 2;
  }
  std::unique_ptr<torch::optim::OptimizerParamState> make() const override {
    return std::make_unique<State>();
  }
  at::Tensor& tensor(torch::optim::OptimizerParamState& base, size_t which) const override {
    auto& state = static_cast<State&>(base);
    return which == 0 ? state.exp_avg() : which == 1 ? state.exp_avg_sq() : state.max_exp_avg_sq();
  }
  int64_t steps(const torch::optim::OptimizerParamState& state) const override {
    return static_cast<const State&>(state).step();
  }
  void set_steps(torch::optim::OptimizerParamState& state, int64_t steps) const override {
    static_cast<State&>(state).step(steps);
  }
  bool counts_steps() const override { return true; }
};

}  // namespace lockstep::inline v0::optim::internal
