// Strategy: one way to train a model on the ranks of a job. Trainer, Accelerator and the recipes
// ask nothing else of it. It has three parts (strategy_parts.h): gradients, state and placement,
// and says as data what it can do.
//
//   std::shared_ptr<Strategy> strategy = make_strategy("zero3");
//   StrategyModel model(net, strategy, comm);                       // rank 0's parameters go to all
//   const auto optimizer = strategy->state().make_optimizer(decay_groups(*net, options), options);
//   strategy->gradients().compute([&] { return loss(model(batch)); });
//   strategy->state().step(*optimizer, {.max_norm = 1.0});
//
// One of one's own derives from the part in which it differs; a whole one is in docs/trainer.md.
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
#include "lockstep/data/sampler.h"
#include "lockstep/flat/nested.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/strategy_parts.h"

namespace lockstep {

// For one model. Every function is called on all ranks in the same order and may communicate, where
// nothing else is said. One thread, the communicator's. Throws what the communicator throws.
class Strategy {
 public:
  using Tensors = StrategyGradients::Tensors;
  using Initial = StrategyPlacement::Initial;

  // Those that are left out are as the base classes have it: every rank has everything, and no
  // gradient travels.
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

  const std::string& name() const { return name_; }
  const StrategyTraits& traits() const { return traits_; }
  StrategyGradients& gradients() { return *gradients_; }
  StrategyState& state() { return *state_; }
  StrategyPlacement& placement() { return *placement_; }
  const StrategyPlacement& placement() const { return *placement_; }

  // Once, before anything that follows: StrategyPlacement::set_up(), and the parts are bound to the
  // model. Both are kept. `initial`: the model was made without values, and gets them from it.
  // zero1 to fsdp keep it until make_optimizer(), where a rank asks for its part alone; no rank has
  // the model before.
  void set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm,
              const Initial& initial = nullptr);
  // The same where all ranks have the same model and parameters already, and again for every
  // generation of ranks (recover/recovery.h), where traits().rebinds or state().shares(): buffers
  // stay each rank's own.
  void bind(std::shared_ptr<torch::nn::Module> model, Communicator comm);

  // Of set_up(). Throw InvalidArgument before it.
  const std::shared_ptr<torch::nn::Module>& model() const;
  Communicator& comm();

 private:
  friend class Accumulation;
  friend class StrategyPart;
  std::string name_;
  StrategyTraits traits_;
  // The parts may stand on these, and go first.
  std::shared_ptr<torch::nn::Module> model_;
  std::optional<Communicator> comm_;
  std::unique_ptr<StrategyGradients> gradients_;
  std::unique_ptr<StrategyState> state_;
  std::unique_ptr<StrategyPlacement> placement_;
  int held_ = 0;  // Accumulations that live
};

// Those of this library:
//   ddp         DistributedDataParallel: buckets, averaged while backward runs
//   average     average_gradients after backward, as tutorial 000 does it
//   ring        the same by the chunked ring over isend and irecv
//   naive-ring  the same by the tutorial's ring
//   horovod     DistributedGradients: as they come, in an order that the ranks agree on
//   zero1       ZeroOptimizer: the optimizer's state divided among the ranks
//   zero2       ... and the gradients; every backward is reduced by itself
//   zero3       ... and one copy of the parameters a host
//   fsdp        ... which hosts divide too: a layer's come as it computes (ZeroUnits); as zero3 where the
//               model has no list of layers that are Hookable
const std::vector<std::string>& strategy_names();
// Whether ranks share copies of the parameters under it: zero3 and fsdp.
bool divides_parameters(std::string_view strategy);
// "naive_ring" and "zero" (zero1) are taken too, and "logical<n>", such as logical8: the same bits
// on any number of ranks up to n (parallel/logical/logical_ranks.h); each computes on one thread.
// Throws InvalidArgument with the list of names. Throws InvalidArgument too for options that a
// strategy has no use for.
struct StrategyOptions {
  // zero3 and fsdp: ZeroOptions::copies, which ranks share one copy of the parameters.
  std::vector<int> copies = {};
};
std::shared_ptr<Strategy> make_strategy(std::string_view given,
                                        const StrategyOptions& options = {});

// Throws InvalidArgument, in `who`'s name, for steps that the strategy does not take: accumulation
// with logical ranks, which take several batches a step as it is; accumulation and float16 where
// the strategy divides the model.
void check_step(const Strategy& strategy, const std::string& who, int64_t accumulation_steps,
                bool float16);

// What a log says of a step: "learning_rate", and "grad_norm" where there is one. Collective.
Metrics update_figures(Strategy& strategy, double learning_rate);

// Batches that a step of each rank takes: 1 without logical ranks. Throws InvalidArgument where
// these cannot be shared equally.
int64_t batches_per_step(const Strategy& strategy, const Communicator& comm);
// Deals a data set of `size` samples in an order of its own every epoch, for batches of
// `batch_size` (with logical ranks: theirs): a DistributedSampler or LogicalSampler.
std::unique_ptr<data::Sampler> make_sampler(const Strategy& strategy, const Communicator& comm,
                                            int64_t size, int64_t batch_size, int64_t seed);

// While it lives, backwards only add up on this rank. Several may live at once.
class [[nodiscard]] Accumulation {
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
  std::shared_ptr<Strategy> strategy_;  // none: nothing is held back
};

// A model under a strategy: its forward, with any signature. M is a ModuleHolder or a
// std::shared_ptr to a module.
template <typename M>
class StrategyModel {
 public:
  // `initial`: the module was made without values, and gets them from it.
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

  M& module() { return module_; }
  auto operator->() { return &*module_; }
  Strategy& strategy() { return *strategy_; }
  const std::shared_ptr<Strategy>& shared_strategy() const { return strategy_; }

 private:
  M module_;
  std::shared_ptr<Strategy> strategy_;
};

}  // namespace lockstep
