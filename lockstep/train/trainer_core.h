// TrainerCore: what Trainer (trainer.h) does that does not depend on the types of its model and its
// data.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/train_step.h"
#include "lockstep/train/trainer_parts.h"
#include "lockstep/train/training_arguments.h"

namespace lockstep {

// One thread, the communicator's; every call is collective.
class TrainerCore {
 public:
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;

  // Trains from the start, or from args.resume_from_checkpoint, to the end, and leaves the best
  // model in place if args say so. A job that its launcher has started again goes on from its last
  // checkpoint by itself; where ranks that die are replaced (`lockstep run --on-failure replace`,
  // and a strategy that rebinds or has shares) the others go on in place, and no step is lost
  // (recover/recovery.h). SIGTERM or SIGUSR1 to any rank ends it sooner, saved
  // (TrainOutput::stopped_by). While it runs, output_dir is this job's alone (run_claim.h). Throws
  // InvalidArgument without a training set, and where output_dir is in use or cannot be written;
  // where ranks are replaced, for a second call too.
  TrainOutput train();

  // The model alone, whole, as a directory that transformers, eval and load_lm() open, with parts'
  // saved.config_json and files. Where ranks divide the model, rank 0 takes all of it into its
  // memory.
  void save_model(const std::filesystem::path& path);

  // eval_loss, compute_metrics' (without it, eval_accuracy, where there are logits), eval_runtime,
  // eval_samples_per_second, eval_steps_per_second, epoch. Throws InvalidArgument without an
  // evaluation set. Rank 0 prints them.
  Metrics evaluate();

  // Of the loop under way, at any time, also within callbacks and compute_metrics; afterwards that
  // of the latest one.
  const TrainerState& state() const { return *state_; }
  torch::optim::Optimizer& optimizer() { return run_.optimizer(); }
  // After train(), for what stands on it: others than at first where ranks were replaced.
  Communicator& comm() { return run_.comm(); }

 protected:
  // Trainer::Parts of the same names.
  struct CoreParts {
    std::shared_ptr<torch::nn::Module> model;
    Communicator comm;
    TrainingArguments args;
    std::function<Metrics(const EvalPrediction&)> compute_metrics;
    std::vector<std::shared_ptr<TrainCallback>> callbacks;
    CheckpointFiles saved;
    std::shared_ptr<Strategy> strategy;
    Strategy::Initial initial;
    int64_t copy_every = 10;
    bool counts_targets = false;  // compute_loss does
  };
  // A data set: so many samples, and the forward of those that are this rank's of `ranks`, whose
  // outputs go to the sum.
  struct Samples {
    int64_t size = 0;
    std::function<void(const Communicator& ranks, PredictionSum&)> forward;
  };

  explicit TrainerCore(CoreParts parts);
  ~TrainerCore() = default;

  // The training set is dealt by deal(), its steps are as step_parts() says, and train_by() trains.
  virtual TrainOutput attempt() = 0;
  virtual bool trains() const = 0;                 // there is a training set
  virtual std::optional<Samples> evaluated() = 0;  // the set to evaluate on, where there is one

  const TrainingArguments& args() const { return parts_.args; }
  const TrainSpec& spec() const { return spec_; }
  const std::shared_ptr<Strategy>& strategy() const { return parts_.strategy; }
  at::Device device() const;
  TrainStep::Parts step_parts();
  TrainOutput train_by(TrainTask task);
  std::function<Evaluation()> evaluation();  // TrainTask's; empty without a set
  EvalPrediction predict_all(const Samples& samples);
  std::optional<amp::AutocastSettings> autocast() const;

 private:
  static CoreParts checked(CoreParts parts);
  struct Forwarded;
  Forwarded forward_all(const Samples& samples);
  Evaluation evaluate_now();
  void check_trained() const;

  CoreParts parts_;
  const TrainSpec spec_;     // of parts_.args
  Communicator data_ranks_;  // that have data of their own
  ModelOnRanks run_;
  Communicator eval_ranks_;  // that evaluate samples of their own
  RunSteps steps_;
  const std::shared_ptr<TrainerState> state_ = std::make_shared<TrainerState>();
  bool trained_ = false;
};

}  // namespace lockstep
