// Values and callbacks of Trainer that do not depend on its model and data.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/trainer_state.h"
#include "lockstep/train/training_arguments.h"

namespace lockstep::inline v0 {

// The result of Trainer::train().
struct TrainOutput {
  int64_t global_step = 0;
  double training_loss = 0;  // mean over all samples, or targets, of this call's steps on all ranks
  // train_runtime, train_samples_per_second, train_steps_per_second, train_loss, epoch.
  Metrics metrics = {};
  // The signal that stopped it (stop_signals.h), the same on all ranks; 0: none.
  int stopped_by = 0;
};

// Ends training if the metric of the best model has not improved by more than `threshold` in
// `patience` evaluations in a row, like transformers'.
class LOCKSTEP_API EarlyStoppingCallback final : public TrainCallback {
 public:
  EarlyStoppingCallback(const TrainingArguments& args, int64_t patience, double threshold = 0);
  void on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                     TrainControl& control) override;
  std::string state() const override;
  void set_state(const std::string& state) override;

 private:
  std::function<double(const Evaluation&)> score_;
  int64_t patience_;
  double threshold_;
  std::optional<double> best_;
  int64_t waited_ = 0;
};

// The same settings as a TrainSpec.
LOCKSTEP_API TrainSpec spec_of(const TrainingArguments& args);

// The score of an evaluation: the metric, or its negative if smaller is better.
// Throws: the result throws InvalidArgument that lists the metrics, if that one is missing.
LOCKSTEP_API std::function<double(const Evaluation&)> score_of(const TrainingArguments& args);

// Collects this rank's rows of a forward over a data set. Without logits (LossOutput) predictions
// are undefined.
class LOCKSTEP_API PredictionSum {
 public:
  // `counted`: the number of samples or targets that the loss is the mean of.
  void add(const LossOutput& output, int64_t counted);
  // Those of this rank.
  EvalPrediction rows() const;
  // The mean over all that was counted on all ranks; nullopt if nothing was.
  // Collective: all ranks.
  std::optional<double> mean_loss(Communicator& comm) const;

 private:
  std::vector<at::Tensor> logits_, labels_;
  RunningLoss loss_;
};

}  // namespace lockstep::inline v0
