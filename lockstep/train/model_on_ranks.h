// ModelOnRanks: a model under a strategy, with its optimizer, on all ranks of a job; under a
// launcher that starts dead ranks anew (`lockstep run --on-failure replace`) it outlives them.
//
//   ModelOnRanks run({.model = net.ptr(), .strategy = strategy, .comm = comm, .step = spec.step});
//   const TrainResult result = run.attempts([&] {
//     StrategyModel model(net, strategy);          // and all that stands on run.comm()
//     TrainLoop loop(run.comm(), task, options);
//     const ModelOnRanks::Training training(run, loop);
//     loop.run();
//     return ...;
//   });
//
// Trainer and the recipes are made of it. A loop of one's own is made of Recovery itself
// (recover/recovery.h), which says how a step survives.
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
#include "lockstep/optim/step_spec.h"
#include "lockstep/recover/recovery.h"
#include "lockstep/recover/reunion.h"
#include "lockstep/recover/rollback_recovery.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// One thread, the communicator's. Collective where nothing else is said.
class ModelOnRanks {
 public:
  struct Parts {
    std::shared_ptr<torch::nn::Module> model;  // rank 0's parameters and buffers go to all
    std::shared_ptr<Strategy> strategy;
    // As init() returned it, where ranks are replaced: one that was started anew calls nothing
    // collective before this class's constructor, in which it meets the others.
    Communicator comm;
    optim::StepSpec step = {};            // the optimizer; a GradScaler where it is in float16
    Strategy::Initial initial = nullptr;  // Strategy::set_up()'s
    // Where the state is divided (StrategyState::shares()): steps between two copies of a rank's
    // share in another rank's memory (RollbackOptions::every).
    int64_t copy_every = 10;
  };

  // Throws what Strategy::set_up() and Recovery throw.
  explicit ModelOnRanks(Parts parts);
  ModelOnRanks(const ModelOnRanks&) = delete;
  ModelOnRanks& operator=(const ModelOnRanks&) = delete;

  // The present generation's: others after a recovery. None of these communicates.
  Communicator& comm() {
    return recovery_ ? recovery_->comm() : rollback_ ? rollback_->comm() : parts_.comm;
  }
  at::Device device() const {
    return parts_.comm.device();
  }  // on which it trains, in all generations
  torch::nn::Module& model() { return *parts_.model; }
  Strategy& strategy() { return *parts_.strategy; }
  const std::shared_ptr<Strategy>& shared_strategy() const { return parts_.strategy; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  // Whether ranks that die are replaced, and the others go on: where the launcher replaces them and
  // the strategy has traits().rebinds or state().shares(). Elsewhere an exception ends the
  // training, as ever.
  bool recovers() const { return recovery_ != nullptr || rollback_ != nullptr; }

  // On rank 0: nobody else writes into the run's folder (run_claim.h), until release(), or as long
  // as this lives. Of several calls the first counts. Says, once, where the file system cannot
  // tell. Throws InvalidArgument.
  void claim(const std::filesystem::path& folder);
  void release() { claim_.reset(); }
  // On rank 0, before it writes there: throws CheckpointError where the claim is lost
  // (WriterClaim::check()).
  void check_claim() const {
    if (claim_) claim_->check();
  }

  // Whether an attempt of this process has made room for the run's files, for the attempts behind
  // it.
  bool has_room() const { return has_room_; }
  void has_made_room() { has_room_ = true; }

  // The step that `result` is of: gradients are complete on this rank. Where ranks are replaced,
  // all of them agree on it before any takes it.
  void step(const StepResult& result, const StrategyStep& how);

  // While one lives, steps are of its loop, which has all its callbacks by now. Where the run
  // goes_on(), so does the loop; elsewhere the caller has put it where it begins.
  class [[nodiscard]] Training {
   public:
    Training(ModelOnRanks& run, TrainLoop& loop) : run_(run) { run_.begin(loop); }
    ~Training() { run_.loop_ = nullptr; }
    Training(const Training&) = delete;
    Training& operator=(const Training&) = delete;

   private:
    ModelOnRanks& run_;
  };
  // Whether a loop is to go on where the run stood when a rank died. Does not communicate.
  bool goes_on() const { return !place_.empty(); }
  int64_t goes_on_at() const;  // the steps done by then; 0 where it does not

  // What `attempt` returns; after a recovery it is called again, from its beginning, on every rank.
  // So it makes anew whatever stands on comm(), and refers to nothing that it has made itself when
  // it is left. Returns once all ranks have returned from it. Throws what it throws where that is
  // no failure of another rank.
  template <typename Attempt>
  auto attempts(const Attempt& attempt) {
    if (recovers()) recover::say_at_work(comm());  // of attempts before
    while (true) {
      try {
        auto result = attempt();
        if (recovers()) recover::finish_together(comm());
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
  at::Tensor state(at::Tensor memory) const;
  void put_back(const at::Tensor& state);

  Parts parts_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<amp::GradScaler> scaler_;
  const TrainLoop* loop_ = nullptr;
  // Of callbacks, before the first step: some may outlive an attempt.
  std::optional<std::vector<std::string>> first_states_;
  std::optional<StepResult> result_;      // of the step that is agreed on
  std::string place_;                     // LoopPoint and streams, as they came back
  at::Tensor first_stream_;               // random, of a run that has not begun
  std::vector<at::Tensor> first_values_;  // likewise, where it trains on a device
  std::optional<RunClaim> claim_;
  bool has_room_ = false;
  bool bound_ = false;  // parameters may lie in an optimizer's memory
  // One of them, where ranks are replaced: of whole states, and of divided ones.
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<RollbackRecovery> rollback_;
};

}  // namespace lockstep
