// What Trainer is made of that does not depend on the model's type.
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/text_loss.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/trainer_state.h"
#include "lockstep/train/training_arguments.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class ModelOnRanks;
class Strategy;

struct TrainOutput {
  int64_t global_step = 0;
  double training_loss = 0;  // mean over all samples, or targets, of this call's steps on all ranks
  // train_runtime, train_samples_per_second, train_steps_per_second, train_loss, epoch.
  Metrics metrics = {};
  // The signal that ended it before its end (stop_signals.h), the same on all ranks; 0: none did.
  int stopped_by = 0;
};

// Ends training when the metric that chooses the best model has not become better, by more than
// `threshold`, in `patience` evaluations in a row. As transformers'.
class EarlyStoppingCallback final : public TrainCallback {
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

torch::optim::AdamWOptions adam_options(const TrainingArguments& args);
// The rate of each step of `steps`.
std::function<double(int64_t)> learning_rates(const TrainingArguments& args, int64_t steps);
TrainLoopOptions loop_options(const TrainingArguments& args, const TrainingSteps& steps);
// The score of an evaluation: the metric, or its negative where small is good. Throws
// InvalidArgument that lists the metrics there are.
std::function<double(const Evaluation&)> score_of(const TrainingArguments& args);

// Rank 0's ModelOnRanks::claim() of output_dir. Collective; throws on all ranks.
void claim_output(ModelOnRanks& run, const TrainingArguments& args);
// Where to go on from; nothing to start anew: what the arguments name, or, in a job that was started
// again, the last checkpoint that it has left itself (run_folder.h). Collective. Throws
// CheckpointError if there is no checkpoint.
std::optional<std::filesystem::path> resumed_checkpoint(Communicator& comm,
                                                        const TrainingArguments& args);
// Puts the best checkpoint's parameters into the model. Collective.
void load_best_model(Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                     const TrainingArguments& args);

// Rank 0's progress bar, its lines {'loss': ..., 'learning_rate': ..., 'epoch': ...} on stdout, and
// output_dir/metrics.jsonl. Where the run begins anew, what a former run has left in output_dir
// is moved aside (run_folder.h), and a line on rank 0's stderr says where to. A line beside the bar says
// what a step takes of its memory, and output_dir/memory.svg draws it, planned and counted (memory_report.h).
// `strategy` and `optimizer` must outlive the loop, which stands where it begins.
enum class RunStart : uint8_t {
  kAnew,
  kAgain,    // nothing of what this process has written counts
  kResumed,  // from a checkpoint
  kInPlace,  // where a rank died
};
void add_standard_callbacks(TrainLoop& loop, Communicator& comm, const TrainingArguments& args,
                            const TrainingSteps& steps, Strategy& strategy,
                            torch::optim::Optimizer& optimizer, RunStart start);
// The last callback is added here.
TrainOutput run_training(ModelOnRanks& run, TrainLoop& loop, const TrainingSteps& steps);
// After a run that a signal has stopped: rank 0 leaves output_dir/requeue (requeue_note.h) where checkpoints are
// saved, and a line on stderr says where it stands. Collective.
void tell_of_stop(Communicator& comm, const TrainingArguments& args, const TrainOutput& output);
// Rank 0's line on stdout.
void print_metrics(const Communicator& comm, const Metrics& metrics);

// This rank's rows of a forward over a data set. Without logits (LossOutput) predictions are undefined.
class PredictionSum {
 public:
  // `counted`: what the loss is the mean of.
  void add(const LossOutput& output, int64_t counted);
  EvalPrediction rows() const;
  // Over all that was counted, on all ranks; nothing, on all ranks, where nothing was. Collective.
  std::optional<double> mean_loss(Communicator& comm) const;

 private:
  std::vector<at::Tensor> logits_, labels_;
  RunningLoss loss_;
};

// Rank 0's on all ranks, which have as many rows. Collective.
void make_same(Communicator& comm, EvalPrediction& prediction, double& loss);

// count_classes() where the predictions are logits of classes; otherwise only the samples.
Evaluation count_if_classes(const EvalPrediction& prediction);
void add_metrics(Metrics& metrics, const Metrics& more);
void add_rates(Metrics& metrics, double seconds, int64_t samples, int64_t batches);

}  // namespace lockstep
