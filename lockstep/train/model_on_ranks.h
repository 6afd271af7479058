// ModelOnRanks: a model under a strategy, with its optimizer, on all ranks of a job. It survives
// dead ranks under a launcher that replaces them, or lets the others go on without them (`lockstep
// run --on-failure replace`, or shrink).
//
//   ModelOnRanks run({.model = net.ptr(), .strategy = strategy, .comm = comm, .step = spec.step});
//   const TrainResult result = run.attempts([&] {
//     StrategyModel model(net, strategy);          // and all that stands on run.comm()
//     const DealtSamples dealt = deal(run.dealt_anew(spec.data), ...);
//     TrainLoop loop(run.comm(), task, options);
//     const ModelOnRanks::Training training(run, loop);
//     loop.run();
//     return ...;
//   });
//
// Trainer and the recipes use it. A loop of your own uses Recovery directly (recover/recovery.h,
// which explains how a step survives).
#pragma once

#include <torch/optim/optimizer.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/optim/step_spec.h"
#include "lockstep/recover/recovery.h"
#include "lockstep/recover/reunion.h"
#include "lockstep/recover/rollback_recovery.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {

class MemoryCallback;
struct RankParts;

// Collective: unless a function says otherwise.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API ModelOnRanks {
 public:
  // The constructor's arguments.
  struct Parts {
    std::shared_ptr<torch::nn::Module> model;  // all ranks get rank 0's parameters and buffers
    std::shared_ptr<Strategy> strategy;
    // If ranks are replaced, this is the communicator that init() returned. A rank that was started
    // anew must call nothing collective before this class's constructor, in which it meets the
    // others.
    Communicator comm;
    optim::StepSpec step = {};            // the optimizer; a GradScaler where it is in float16
    Strategy::Initial initial = nullptr;  // Strategy::set_up()'s
    // For divided state (StrategyState::shares()): steps between two copies of a rank's share in
    // another rank's memory (RollbackOptions::every).
    int64_t copy_every = 10;
  };

  // Throws: as Strategy::set_up() and Recovery.
  explicit ModelOnRanks(Parts parts);
  ModelOnRanks(const ModelOnRanks&) = delete;
  ModelOnRanks& operator=(const ModelOnRanks&) = delete;

  // These do not communicate. comm() is the present generation's, another one after a recovery.
  Communicator& comm() {
    return recovery_ ? recovery_->comm() : rollback_ ? rollback_->comm() : parts_.comm;
  }
  at::Device device() const { return parts_.comm.device(); }  // the same in all generations
  torch::nn::Module& model() { return *parts_.model; }        // the one given
  Strategy& strategy() { return *parts_.strategy; }           // the one given
  // The same, shared.
  const std::shared_ptr<Strategy>& shared_strategy() const { return parts_.strategy; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }         // the strategy's
  amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }  // null unless float16
  // Whether the run goes on when ranks die: the launcher replaces them, and the strategy has
  // traits().rebinds or state().shares(); or it lets the others go on, and the strategy has
  // traits().rebinds. Otherwise an exception ends the training.
  bool recovers() const { return recovery_ != nullptr || rollback_ != nullptr; }
  // The samples of a run's steps, as the present ranks share them: fewer ranks have more each.
  // Throws: as dealt_anew() (train_spec.h).
  TrainSpec::Data dealt_anew(const TrainSpec::Data& data);

  // On rank 0: reserves the run's folder (run_claim.h) until release() or the end of this object.
  // Only the first call counts. It warns, once, if the file system has no locks.
  // Throws: InvalidArgument.
  void claim(const std::filesystem::path& folder);
  void release() { claim_.reset(); }
  // On rank 0, before it writes there.
  // Throws: CheckpointError if the claim is lost (WriterClaim::check()).
  void check_claim() const {
    if (claim_) claim_->check();
  }

  // Whether an earlier attempt of this process has made room for the run's files.
  bool has_room() const { return has_room_; }
  // Called when that is done.
  void has_made_room() { has_room_ = true; }

  // The memory that a step takes on the ranks, found in the run's first step: an attempt that goes
  // on in place does not find it anew. Null: it was not found in this process.
  const std::shared_ptr<const MemoryCallback>& memory() const { return memory_; }
  void keep_memory(std::shared_ptr<const MemoryCallback> memory) { memory_ = std::move(memory); }

  // Takes the step of `result`, whose gradients are complete on this rank. If ranks are replaced,
  // all of them agree on the step before any takes it.
  void step(const StepResult& result, const StrategyStep& how);

  // While it exists, steps belong to its loop.
  // Requires: the loop has all its callbacks. If the run goes_on(), the loop continues there;
  // otherwise the caller has set where it begins.
  class [[nodiscard]] LOCKSTEP_API Training {
   public:
    Training(ModelOnRanks& run, TrainLoop& loop) : run_(run) { run_.begin(loop); }
    ~Training() { run_.loop_ = nullptr; }
    Training(const Training&) = delete;
    Training& operator=(const Training&) = delete;

   private:
    ModelOnRanks& run_;
  };
  // Whether a loop continues where the run stood when a rank died. Does not communicate.
  bool goes_on() const { return !place_.empty(); }
  int64_t goes_on_at() const;  // the steps done by then; 0 if it does not

  // Calls `attempt` and returns its result, once all ranks have returned from it. After a recovery
  // it is called again on every rank. It must therefore make anew whatever uses comm(), and leave
  // no references to what it has made.
  // Throws: what `attempt` throws, unless that is a failure of another rank.
  template <typename Attempt>
  auto attempts(const Attempt& attempt) {
    if (recovers()) recover::say_at_work(comm());  // of attempts before
    while (true) {
      try {
        auto result = attempt();
        if (recovers()) recover::finish_together(comm());
        if constexpr (requires { result.stopped_by; }) {
          // Steps are left, so that a host that is lost now is missed.
          if (recovers() && result.stopped_by != 0) recover::say_at_work(comm());
        }
        return result;
      } catch (...) {
        recover();
      }
    }
  }

 private:
  void give_initial_values();  // of a model that was made without, all of them
  std::vector<torch::optim::OptimizerParamGroup> groups() const;
  void make_optimizer();
  void set_up();
  void bind();
  void put_back_first_values();
  void begin_states();
  void bind_or_recover();
  void recover();
  void recover_ranks();
  void begin(TrainLoop& loop);
  std::string place() const;
  void inherit(const std::string& of_gone);
  void set_streams(const std::string& place);
  RankParts share_parts();
  at::Tensor state(at::Tensor memory);
  void put_back(const at::Tensor& state);

  Parts parts_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<amp::GradScaler> scaler_;
  const TrainLoop* loop_ = nullptr;
  // The states of the callbacks before the first step: some callbacks may outlive an attempt.
  std::optional<std::vector<std::string>> first_states_;
  std::optional<StepResult> result_;      // of the step that is agreed on
  std::string place_;                     // LoopPoint and streams, as they came back
  at::Tensor first_stream_;               // random, of a run that has not begun
  std::vector<at::Tensor> first_values_;  // likewise, where they do not stay in the model
  std::optional<RunClaim> claim_;
  std::shared_ptr<const MemoryCallback> memory_;
  bool has_room_ = false;
  bool bound_ = false;  // parameters may lie in an optimizer's memory
  // One of them, where ranks are replaced: of whole states, and of divided ones.
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<RollbackRecovery> rollback_;
};

}  // namespace lockstep::inline v0
