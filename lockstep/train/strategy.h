// Strategy: one way to train a model on the ranks of a job. Trainer, Accelerator and the recipes
// use no other interface. It has three parts (strategy_parts.h), gradients, state and placement,
// and says as data what it can do.
//
//   std::shared_ptr<Strategy> strategy = make_strategy("zero3");
//   StrategyModel model(net, strategy, comm);                // all ranks get rank 0's parameters
//   const auto optimizer = strategy->state().make_optimizer(decay_groups(*net, options), options);
//   strategy->gradients().compute([&] { return loss(model(batch)); });
//   strategy->state().step(*optimizer, {.max_norm = 1.0});
//
// A strategy of your own derives from the part in which it differs; docs/trainer.md has a whole
// one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/nested.h"
#include "lockstep/parallel/ddp/diloco.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/strategy_parts.h"

namespace lockstep::inline v0 {

// For one model.
// Collective: every function, in the same order on all ranks, unless it says otherwise.
// Throws: the communicator's errors.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API Strategy {
 public:
  using Tensors = StrategyGradients::Tensors;
  using Initial = StrategyPlacement::Initial;

  // A part that is left out is the base class's: every rank has everything, and gradients are not
  // sent.
  struct Parts {
    std::string name;  // for messages and records: "ddp"
    StrategyTraits traits = {};
    std::unique_ptr<StrategyGradients> gradients = {};
    std::unique_ptr<StrategyState> state = {};
    std::unique_ptr<StrategyPlacement> placement = {};
  };
  explicit Strategy(Parts parts);
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  ~Strategy() = default;

  const std::string& name() const { return name_; }         // as make_strategy() takes it
  const StrategyTraits& traits() const { return traits_; }  // what it can do
  StrategyGradients& gradients() { return *gradients_; }    // around forward and backward
  StrategyState& state() { return *state_; }                // the optimizer and its checkpoint
  StrategyPlacement& placement() { return *placement_; }    // who has which data and parameters
  const StrategyPlacement& placement() const { return *placement_; }

  // Calls StrategyPlacement::set_up() and binds the parts to the model. Keeps the model and the
  // ranks. To be called once, first. `initial`: gives values to a model that was made without.
  // zero1 to fsdp keep it until make_optimizer(), where a rank asks only for its part; before that
  // no rank has the values.
  void set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm,
              const Initial& initial = nullptr);
  // The same if all ranks already have the same model and parameters; and again for every
  // generation of ranks (recover/recovery.h) with traits().rebinds or state().shares(). Each rank
  // keeps its buffers.
  void bind(std::shared_ptr<torch::nn::Module> model, Communicator comm);

  // Throw InvalidArgument before set_up().
  const std::shared_ptr<torch::nn::Module>& model() const;
  Communicator& comm();  // of the ranks that it trains on

 private:
  friend class Accumulation;
  friend class StrategyPart;
  std::string name_;
  StrategyTraits traits_;
  // The parts may use these, and are destroyed before them.
  std::shared_ptr<torch::nn::Module> model_;
  std::optional<Communicator> comm_;
  std::unique_ptr<StrategyGradients> gradients_;
  std::unique_ptr<StrategyState> state_;
  std::unique_ptr<StrategyPlacement> placement_;
  int held_ = 0;  // existing Accumulations
};

// The strategies of this library with which N ranks follow one process:
//   ddp         DistributedDataParallel: buckets, averaged while backward runs
//   average     average_gradients after backward, as in tutorial 000
//   ring        the same by the chunked ring over isend and irecv
//   naive-ring  the same by the tutorial's ring
//   horovod     DistributedGradients: averaged as they are computed, in an order of agreement
//   zero1       ZeroOptimizer: the optimizer's state is divided among the ranks
//   zero2       also the gradients; each backward is reduced separately
//   zero3       also the parameters, with one copy for each host
//   fsdp        hosts divide that copy too, and a layer's parameters are fetched when it computes
//               (ZeroUnits); like zero3 if the model has no list of Hookable layers
// make_strategy() has others besides, of which each is another training.
LOCKSTEP_API const std::vector<std::string>& strategy_names();
// Whether ranks share copies of the parameters: zero3 and fsdp.
LOCKSTEP_API bool divides_parameters(std::string_view strategy);
// The options of make_strategy() beside the name.
struct StrategyOptions {
  // zero3 and fsdp: ZeroOptions::copies, which ranks share one copy of the parameters.
  std::vector<int> copies = {};
  // diloco: the outer steps; without them the defaults.
  std::optional<DiLoCoOptions> diloco = {};
};
// Makes the strategy of that name: one of strategy_names(), "naive_ring" or "zero" (zero1), or
//   diloco      DiLoCo (parallel/ddp/diloco.h): each rank trains by itself, and an outer optimizer
//               averages what they have changed once in many steps. Between these the model that is
//               evaluated and saved is the average of the ranks, buffers included
//   logical<n>  such as logical8: the same bits on any number of ranks up to n
//               (parallel/logical/logical_ranks.h), each of which computes on one thread
// Throws: InvalidArgument with the list of names, and for options that the strategy does not use.
LOCKSTEP_API std::shared_ptr<Strategy> make_strategy(std::string_view given,
                                                     const StrategyOptions& options = {});

// Throws: InvalidArgument, in the name of `who`, for steps that the strategy does not take:
// accumulation with logical ranks, which take several batches for each step already; accumulation
// or float16 if the strategy divides the model.
LOCKSTEP_API void check_step(const Strategy& strategy, const std::string& who,
                             int64_t accumulation_steps, bool float16);

// The figures of a log about a step: "learning_rate", and "grad_norm" if there is one.
// Collective: all ranks.
// Throws: as StrategyState::check_steps().
LOCKSTEP_API Metrics update_figures(Strategy& strategy, double learning_rate);

// The number of batches that a step of each rank takes: 1 without logical ranks.
// Throws: InvalidArgument if the ranks cannot share the logical ranks equally.
LOCKSTEP_API int64_t batches_per_step(const Strategy& strategy, const Communicator& comm);

// While an object exists, backwards only add up gradients on this rank. Several may exist at once.
class [[nodiscard]] LOCKSTEP_API Accumulation {
 public:
  explicit Accumulation(std::shared_ptr<Strategy> strategy) : strategy_(std::move(strategy)) {
    if (!strategy_) return;
    if (strategy_->held_ == 0) strategy_->gradients().communicate(false);
    ++strategy_->held_;
  }
  ~Accumulation() {
    if (strategy_ && --strategy_->held_ == 0) strategy_->gradients().communicate(true);
  }
  Accumulation(Accumulation&&) noexcept = default;
  Accumulation& operator=(Accumulation&&) = delete;

 private:
  std::shared_ptr<Strategy> strategy_;  // null: this object has no effect
};

// The forward of a model under a strategy, with any signature. M is a ModuleHolder or a
// std::shared_ptr to a module.
template <typename M>
class StrategyModel {
 public:
  // Calls Strategy::set_up().
  StrategyModel(M module, std::shared_ptr<Strategy> strategy, Communicator comm,
                const Strategy::Initial& initial = nullptr)
      : module_(std::move(module)), strategy_(std::move(strategy)) {
    std::shared_ptr<torch::nn::Module> model;
    if constexpr (requires { module_.ptr(); })
      model = module_.ptr();
    else
      model = module_;
    strategy_->set_up(std::move(model), std::move(comm), initial);
  }

  // The strategy has the module already.
  StrategyModel(M module, std::shared_ptr<Strategy> strategy)
      : module_(std::move(module)), strategy_(std::move(strategy)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  // The same as operator().
  template <typename... Args>
  auto forward(Args&&... args) {
    using Result = std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    std::optional<Result> result;
    const Strategy::Tensors outputs = strategy_->gradients().forward(flat::rows_of(args...), [&] {
      result.emplace(module_->forward(std::forward<Args>(args)...));
      return flat::tensors_of(*result);
    });
    flat::set_tensors(*result, outputs);
    return std::move(*result);
  }

  M& module() { return module_; }  // the wrapped one
  auto operator->() { return &*module_; }
  Strategy& strategy() { return *strategy_; }  // the one that trains it
  // The same, shared.
  const std::shared_ptr<Strategy>& shared_strategy() const { return strategy_; }

 private:
  M module_;
  std::shared_ptr<Strategy> strategy_;
};

}  // namespace lockstep::inline v0
