// Callbacks of most runs: they write the metrics file and show the progress.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/report/jsonl.h"
#include "lockstep/report/progress_bar.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// The number, from 1, of the epoch that a state is in or has just ended.
LOCKSTEP_API int64_t epoch_number(const TrainerState& state);

// The number of steps that the epoch of a state will have; `max_steps` of the run may cut it (0: no
// limit).
LOCKSTEP_API int64_t steps_of_epoch(const TrainerState& state, int64_t steps_per_epoch,
                                    int64_t max_steps);

// Whether a member of metrics.jsonl is equal in two runs that compute the same numbers. The other
// members depend on the machine (durations, rates, the rank that was late), and `lockstep diff`
// skips them. A new member of that kind needs an ending such as "_s" or "_per_second", or an entry
// in the list of this function.
LOCKSTEP_API bool counts_in_diff(std::string_view member);

// Writes one line for each log: {"type": "train", "step", "epoch", "loss", "samples_per_s",
// "seconds", the event's figures and texts}. Writes one line for each epoch with an evaluation:
// {"type": "test", ..., "loss" and "accuracy" on the test data, the evaluation's other metrics,
// "samples", "train_loss", "best"}. `loss` is the mean over ranks and over the steps since the line
// before.
// Requires: rank 0.
class LOCKSTEP_API MetricsCallback final : public TrainCallback {
 public:
  explicit MetricsCallback(JsonlWriter writer) : writer_(std::move(writer)) {}
  void on_log(const TrainerState& state, const LogEvent& event) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;
  void on_save(TrainerState& state, bool best) override;
  // The length of the file. Lines beyond it belong to steps that are taken again.
  std::string state() const override;
  void set_state(const std::string& state) override;  // "": of a rank that did not write
  void add_state(const std::string& state) override { set_state(state); }

 private:
  JsonlWriter writer_;
};

// "test accuracy 97.21 %"
LOCKSTEP_API std::string test_accuracy_text(const Evaluation& evaluation);

// The options of a ProgressCallback.
struct ProgressCallbackOptions {
  Terminal terminal = {};           // where the bar is drawn
  int64_t epochs = 1;               // of the run
  int64_t steps_per_epoch = 1;      // of the optimizer
  int64_t max_steps = 0;            // 0: no limit
  int ranks = 1;                    // of the job
  std::string counted = "samples";  // the unit of what a step learns from
  // The text about the evaluation in an epoch's line.
  std::function<std::string(const Evaluation&)> evaluated = test_accuracy_text;
};

// Shows a bar during each epoch, and a line at its end.
// Requires: rank 0.
class LOCKSTEP_API ProgressCallback final : public TrainCallback {
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

}  // namespace lockstep::inline v0
