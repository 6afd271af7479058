// DistributedOptimizer: an optimizer whose steps are those of all ranks together, in Horovod's way:
// the model is unchanged, and one line changes.
//
//   lockstep::broadcast_parameters(model, comm);
//   lockstep::DistributedOptimizer<torch::optim::Adam> optimizer(
//       comm, model->named_parameters(), {}, model->parameters(),
//       torch::optim::AdamOptions(0.001));
//   ...
//   optimizer.zero_grad();
//   loss.backward();   // gradients are reduced as they come
//   optimizer.step();  // and are all there before the step is taken
//
// Otherwise it is an O: schedules, checkpoints, GradScaler and broadcast_optimizer_state() accept
// it. For an existing optimizer, or a final class, use DistributedGradients.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/pending_gradients.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/parallel/horovod/adasum.h"
#include "lockstep/parallel/horovod/distributed_gradients.h"

namespace lockstep::inline v0 {

// A module's named_parameters(), or a list.
class LOCKSTEP_API NamedParameters {
 public:
  NamedParameters() = default;
  NamedParameters(NamedTensors list) : list_(std::move(list)) {}
  template <typename Dict>
    requires requires(const Dict& dict) { dict.begin()->key(), dict.begin()->value(); }
  NamedParameters(const Dict& dict) : list_(to_named_tensors(dict)) {}

  // The groups' parameters by their names, or by their positions, "parameter 3", if there are no
  // names at all.
  // Throws: InvalidArgument for a parameter without a name.
  NamedTensors of(const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

 private:
  NamedTensors list_;
};

namespace horovod {

// The step that takes StepOptions, if O has it.
template <typename O>
class AroundFusedStep : public O {
 public:
  using O::O;
  using O::step;
  optim::StepResult step(const optim::StepOptions& options) override {
    optim::StepResult result;
    around([&] { result = O::step(options); }, /*has_closure=*/false);
    return result;
  }

 protected:
  virtual void around(const std::function<void()>& take_step, bool has_closure) = 0;
};

// An O whose step() runs inside around().
template <typename O>
class AroundStep : public O {
 public:
  using O::O;

 protected:
  virtual void around(const std::function<void()>& take_step, bool has_closure) = 0;
};

// The base class of DistributedOptimizer<O>.
template <typename O>
using Around =
    std::conditional_t<std::is_base_of_v<optim::FusedStep, O>, AroundFusedStep<O>, AroundStep<O>>;

}  // namespace horovod

// O: torch::optim::SGD, Adam, ..., lockstep::optim::FusedAdamW, or any other class that derives
// from torch::optim::Optimizer. Not copyable, not movable.
// Thread-safety: one thread at a time.
template <typename O>
class DistributedOptimizer final : public horovod::Around<O>, public PendingGradients {
 public:
  using LossClosure = torch::optim::Optimizer::LossClosure;

  // `arguments` are O's own, `names` are for messages and may be {}. All parameter groups must be
  // given here. DistributedGradients defines these options.
  //
  // With GradientOp::kAdasum each rank takes its own step and the steps are combined (AdasumStep):
  // gradients are never reduced, synchronize() does nothing, the optimizer's state differs from
  // rank to rank, and all options except `op` are ignored.
  // Collective: all ranks call it.
  template <typename... Arguments>
  DistributedOptimizer(Communicator comm, const NamedParameters& names,
                       const DistributedGradientsOptions& options, Arguments&&... arguments)
      : horovod::Around<O>(std::forward<Arguments>(arguments)...) {
    const NamedTensors parameters = names.of(this->param_groups());
    count_ = parameters.size();
    if (options.op == GradientOp::kAdasum) {
      std::vector<at::Tensor> tensors;
      for (const auto& entry : parameters) tensors.push_back(entry.second);
      adasum_ = std::make_unique<AdasumStep>(std::move(comm), std::move(tensors));
    } else {
      gradients_ = std::make_unique<DistributedGradients>(parameters, std::move(comm), options);
    }
  }
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // synchronize(), then O's step; with a closure, synchronize() after each of its evaluations
  // instead.
  // Collective: all ranks call it.
  using horovod::Around<O>::step;
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    LossClosure evaluate = closure;
    if (closure && gradients_) {
      evaluate = [&] {
        at::Tensor value = closure();
        gradients_->synchronize();
        return value;
      };
    }
    around([&] { loss = O::step(evaluate); }, static_cast<bool>(closure));
    return loss;
  }

  // Waits for the gradients, to inspect or clip them before step().
  // Collective: all ranks call it.
  void synchronize() override {
    if (gradients_) gradients_->synchronize();
  }

  // While the guard lives, step() does not call synchronize(), and throws InvalidArgument if the
  // caller forgot to. step() does not reduce gradients that are reduced already, so this is only
  // for explicitness.
  class [[nodiscard]] LOCKSTEP_API SkipSynchronize {
   public:
    explicit SkipSynchronize(bool& flag) : flag_(flag) { flag_ = true; }
    ~SkipSynchronize() { flag_ = false; }
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;

   private:
    bool& flag_;
  };
  // The next step() does not wait for gradients, while the result lives.
  SkipSynchronize skip_synchronize() { return SkipSynchronize(skip_); }

  // Calls O's zero_grad(). A call through a torch::optim::Optimizer& is not checked, because its
  // zero_grad() is not virtual.
  // Throws: InvalidArgument between backward and step() or synchronize(), while the gradients are
  // in transit.
  void zero_grad(bool set_to_none = true) {
    if (gradients_ && gradients_->pending()) {
      throw InvalidArgument(
          "zero_grad() after backward() and before step() or synchronize(): gradients are on their "
          "way to the other ranks; call it before backward");
    }
    O::zero_grad(set_to_none);
  }

  // Parameters without a gradient on some ranks in the last step.
  std::vector<MissingGradient> missing() const {
    return gradients_ ? gradients_->missing() : std::vector<MissingGradient>();
  }

 private:
  void around(const std::function<void()>& take_step, bool has_closure) override {
    if (inside_) return take_step();  // one of O's step()s calls the other
    size_t count = 0;
    for (const auto& group : this->param_groups()) count += group.params().size();
    if (count != count_) {
      throw InvalidArgument(
          "parameters were added to a DistributedOptimizer, which does not reduce their "
          "gradients; give all parameter groups to its constructor");
    }
    struct Inside {
      bool& flag;
      explicit Inside(bool& f) : flag(f) { flag = true; }
      ~Inside() { flag = false; }
    } inside(inside_);
    if (adasum_) {
      adasum_->before();
      take_step();
      adasum_->after();
      return;
    }
    if (skip_ && gradients_->pending())
      throw InvalidArgument("step() under skip_synchronize() before synchronize()");
    if (!skip_ && !has_closure) gradients_->synchronize();
    take_step();
    gradients_->stepped();
  }

  std::unique_ptr<DistributedGradients> gradients_;
  std::unique_ptr<AdasumStep> adasum_;  // instead of gradients_, with GradientOp::kAdasum
  size_t count_ = 0;
  bool inside_ = false;
  bool skip_ = false;
};

}  // namespace lockstep::inline v0
