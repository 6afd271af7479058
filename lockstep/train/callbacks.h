// Callbacks that most runs want: the metrics file, and progress for a person.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/report/jsonl.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// The epoch that a state is in or has just ended, from 1.
int64_t epoch_number(const TrainerState& state);

// The steps that there will be of the epoch that a state is in: up to `max_steps` of the run (0: no limit).
int64_t steps_of_epoch(const TrainerState& state, int64_t steps_per_epoch, int64_t max_steps);

// Whether a member of metrics.jsonl is what two runs of the same numbers have alike. Others are the machine's: how
// long something took, how fast it went, which rank was late. lockstep diff passes over them. Whoever writes a new
// member says so in the list of this function, where its end does not ("_s", "_per_second", ...).
bool counts_in_diff(std::string_view member);

// Writes a line a log {"type": "train", "step", "epoch", "loss", "samples_per_s", "seconds", the event's figures and texts} and
// a line an epoch's end {"type": "test", ..., "loss" and "accuracy" on the test data, the evaluation's
// other metrics, "samples", "train_loss", "best"}. `loss` is the mean over ranks and steps since the line before. For rank 0.
class MetricsCallback final : public TrainCallback {
 public:
  explicit MetricsCallback(JsonlWriter writer) : writer_(std::move(writer)) {}
  void on_log(const TrainerState& state, const LogEvent& event) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;
  void on_save(TrainerState& state, bool best) override;
  // The file's length: lines beyond it are of steps that are taken again.
  std::string state() const override;
  void set_state(const std::string& state) override;

 private:
  JsonlWriter writer_;
};

// "test accuracy 97.21 %"
std::string test_accuracy_text(const Evaluation& evaluation);

struct ProgressCallbackOptions {
  Terminal terminal = {};
  int64_t epochs = 1;
  int64_t steps_per_epoch = 1;
  int64_t max_steps = 0;  // 0: no limit
  int ranks = 1;
  std::string counted = "samples";  // what a step learns from
  // What an epoch's line says of its evaluation.
  std::function<std::string(const Evaluation&)> evaluated = test_accuracy_text;
};

// Shows a bar an epoch, and one line at its end. For rank 0.
class ProgressCallback final : public TrainCallback {
 public:
  explicit ProgressCallback(ProgressCallbackOptions options);
  void on_step(const TrainerState& state, const StepResult& result) override;
  void on_log(const TrainerState& state, const LogEvent& event) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;

 private:
  std::string label(const TrainerState& state) const;

  ProgressCallbackOptions options_;
  ProgressBar bar_;
  ProgressBar::Clock::time_point start_ = ProgressBar::Clock::now();
  int64_t first_step_ = -1;  // of this process
  int64_t first_samples_ = 0;
  std::optional<double> loss_;  // this rank's, smoothed, or of_log_
  bool of_log_ = false;
};

}  // namespace lockstep
