// TrainerCore: the part of Trainer (trainer.h) that does not depend on the types of its model and
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
#include "lockstep/core/export.h"
#include "lockstep/optim/exponential_average.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/train_step.h"
#include "lockstep/train/trainer_parts.h"
#include "lockstep/train/training_arguments.h"

namespace lockstep::inline v0 {

// With args.ema evaluations, predictions and all that is saved are of the average, also after
// train(); the model in memory is the trained one. After load_best_model_at_end they are of the
// model, which is the best average then.
// Collective: every function.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API TrainerCore {
 public:
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;

  // Trains from the start, or from args.resume_from_checkpoint, to the end, and then loads the best
  // model if args say so. A job that its launcher has started again resumes from its last
  // checkpoint. When ranks die, the others continue in place and no step is lost, under `lockstep
  // run --on-failure replace` (a strategy that rebinds or has shares) or shrink (one that rebinds)
  // (recover/recovery.h). SIGTERM or SIGUSR1 to any rank ends it early, after a save
  // (TrainOutput::stopped_by). During the call output_dir belongs to this job (run_claim.h).
  // Throws: InvalidArgument without a training set, if output_dir is in use or cannot be written,
  // and for a second call if ranks are replaced; what run_loop() throws.
  TrainOutput train();

  // Saves only the whole model, as a directory that transformers, eval and load_lm() open, with the
  // files of Parts::saved. If ranks divide the model, rank 0 needs memory for all of it.
  void save_model(const std::filesystem::path& path);

  // Returns eval_loss, the metrics of compute_metrics (without it eval_accuracy, if there are
  // logits), eval_runtime, eval_samples_per_second, eval_steps_per_second and epoch. Rank 0 prints
  // them.
  // Throws: InvalidArgument without an evaluation set.
  Metrics evaluate();

  // The present state of the loop, also within callbacks and compute_metrics; after train() its
  // last.
  const TrainerState& state() const { return *state_; }
  // The one that takes the steps.
  torch::optim::Optimizer& optimizer() { return run_.optimizer(); }
  // Where the parts of the run are marked, for spans of the caller's own (TimelineSpan); null
  // without args.trace_steps and args.nvtx.
  Timeline* timeline() const { return spec_.loop.timeline.get(); }
  // The present ranks, which are others than at first if ranks were replaced.
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
    bool counts_targets = false;  // of compute_loss
  };
  // A data set: its size, and a function that runs the forward of this rank's samples among `ranks`
  // and adds the outputs to the sum.
  struct Samples {
    int64_t size = 0;
    std::function<void(const Communicator& ranks, PredictionSum&)> forward;
  };

  explicit TrainerCore(CoreParts parts);
  ~TrainerCore() = default;

  // Deals the training set by deal(), makes a task of run(), and trains by train_by().
  virtual TrainOutput attempt() = 0;
  virtual bool trains() const = 0;                 // whether there is a training set
  virtual std::optional<Samples> evaluated() = 0;  // the evaluation set, if there is one

  const TrainingArguments& args() const { return parts_.args; }
  const TrainSpec& spec() const { return spec_; }
  ModelOnRanks& run() { return run_; }
  const std::shared_ptr<Strategy>& strategy() const { return parts_.strategy; }
  at::Device device() const;
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
  std::unique_ptr<optim::ExponentialAverage::InModel> averaged() const;

  CoreParts parts_;
  const TrainSpec spec_;  // of parts_.args
  ModelOnRanks run_;
  Communicator eval_ranks_;  // StrategyPlacement::evaluation_ranks()
  RunSteps steps_;
  std::shared_ptr<optim::ExponentialAverage> average_;  // of the latest train(); null: none
  const std::shared_ptr<TrainerState> state_ = std::make_shared<TrainerState>();
  bool trained_ = false;
};

}  // namespace lockstep::inline v0
