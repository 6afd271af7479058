// TrainLoop: the loop of steps, epochs and evaluations, the same for every model and data set;
// Trainer (trainer.h) and the recipes are made of it. What it trains is given as a TrainTask
// (supervised_task.h makes one from a model and a loader), what watches it as callbacks
// (callbacks.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/loop_point.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/stop_agreement.h"
#include "lockstep/train/stop_signals.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {

// Where the seconds of a step went, on this rank.
struct StepTimes {
  double data = 0;  // waiting for the loader
  double forward = 0;
  double backward = 0;  // without the next
  double waiting = 0;   // for other ranks, in any of them
  double optimizer = 0;
};

// One step as this rank saw it.
struct StepResult {
  DeviceScalar loss = 0;  // mean over this rank's batch
  int64_t samples = 0;    // of this rank's batch
  // What the loss is the mean of, where these are not the samples (CountsTargets); -1: they are.
  int64_t targets = -1;
  int64_t counted() const { return targets < 0 ? samples : targets; }
  StepTimes times = {};  // zeros where the task does not measure them
  // Seconds without those that this rank was in calls of communicators; TrainLoop measures it.
  double own = 0;
  // Bytes that a forward left for its backward; counted in the first step, 0 in others.
  int64_t activations = 0;
};

// What is trained. Every function is called on all ranks, in the same order, and may communicate.
struct TrainTask {
  int64_t steps_per_epoch = 0;
  // Begins epoch `epoch` (from 0) at its step `first_step`, without loading what comes before.
  std::function<void(int64_t epoch, int64_t first_step)> begin_epoch;
  // The next batch: forward, backward, averaging, optimizer.
  std::function<StepResult()> step;
  // Leaves the model in training mode and the generators as they were. Empty: no evaluation.
  std::function<Evaluation()> evaluate = {};
  // What a log of step `step`, the last one, says beside the loss, by name ("experts/0/entropy"). Empty: nothing.
  std::function<Metrics(int64_t step)> figures = {};
};

// Losses and rates are over all ranks, losses weighted by StepResult::counted().
struct LogEvent {
  double loss = 0;           // mean over the steps since the last log
  double samples_per_s = 0;  // over the same
  Metrics figures = {};      // the task's, this rank's, and callbacks'
  std::vector<std::pair<std::string, std::string>> texts = {};  // callbacks', by name
};
struct EpochEvent {
  double loss = 0;           // mean over the epoch, or what was done of it
  double seconds = 0;        // without the evaluation
  double samples_per_s = 0;  // likewise
  std::optional<Evaluation> evaluation = {};
  bool best = false;  // the best so far
};
// What callbacks may ask for; all ranks must ask for the same.
struct TrainControl {
  bool stop = false;  // end training after this step
};

// Watches a trainer. Every function is called on every rank, in the order of addition, and may
// communicate.
class TrainCallback {
 public:
  virtual ~TrainCallback() = default;
  virtual void on_step(const TrainerState&, const StepResult&) {}
  // All callbacks', then on_log() of all: what else the log is to say. Not of a log that log_ends adds.
  virtual void before_log(const TrainerState&, LogEvent&) {}
  virtual void on_log(const TrainerState&, const LogEvent&) {}
  // After every evaluation, those of on_epoch included; comes before it.
  virtual void on_evaluation(const TrainerState&, const Evaluation&, bool /*best*/, TrainControl&) {
  }
  // After an epoch and its evaluation, or where max_steps ended within one. `state` counts the
  // epoch as completed.
  virtual void on_epoch(const TrainerState&, const EpochEvent&) {}
  // When the run should be saved: every save_every steps, after each on_epoch, and when a signal stops it.
  // With `best`, this state has had the best evaluation so far.
  virtual void on_save(TrainerState&, bool /*best*/) {}
  // Once, at the end of training; not where an exception ends it.
  virtual void on_end(const TrainerState&) {}
  // What this rank's callback has added up and a run that goes on in place (recover/recovery.h) is to
  // have again: state() as after the latest of the calls above. Do not communicate. Few bytes, as a
  // copy travels every step.
  virtual std::string state() const { return {}; }
  virtual void set_state(const std::string&) {}
};

struct TrainLoopOptions {
  int64_t epochs = 10;
  int64_t max_steps = 0;       // optimizer steps in all, resumed ones included; 0: no limit
  int64_t log_every = 50;      // steps
  bool log_ends = false;       // besides, the first step and the last, beside what log_every counts
  int64_t save_every = 0;      // steps; 0: only at the ends of epochs
  int64_t evaluate_every = 0;  // steps; 0: only at the ends of epochs
  bool evaluate_epochs = true;  // at the end of an epoch, or of training within one
  bool save_epochs = true;      // likewise
  bool save_best = false;       // besides, whenever an evaluation is the best
  // What makes an evaluation the best: the greatest score. Default: its accuracy.
  std::function<double(const Evaluation&)> score = {};
  // The signal that tells this rank to stop; 0: none has come. When any rank is told to, all stop after the same step,
  // about half a second later (stop_agreement.h), and save; at the end of an epoch it is evaluated before. While run()
  // runs the process listens for SIGTERM and SIGUSR1 (stop_signals.h). Empty, on all ranks: it does not.
  std::function<int()> stop_signal = StopSignals::received;
};

class TrainLoop {
 public:
  // `state`: where it keeps where it stands, for others to read at any time; what was there before
  // goes. Null: within it.
  TrainLoop(Communicator comm, TrainTask task, TrainLoopOptions options,
            std::shared_ptr<TrainerState> state = nullptr);

  void add(std::shared_ptr<TrainCallback> callback) { callbacks_.push_back(std::move(callback)); }

  // Trains to the end, or from where `state` says to the end. Collective. Throws what the task and
  // the callbacks throw.
  void run();
  // The signal that ended the latest run() before its end, the same on all ranks; 0: none did.
  int stopped_by() const { return stopped_by_; }

  // Of the step under way, whose update is all that is left: where this rank will stand after it.
  LoopPoint point_after(const StepResult& result) const;
  // Before run(): where this rank stands, from the start or from a checkpoint.
  LoopPoint point() const;
  // The next run() begins with what follows the step that led there, log, evaluation and save. The
  // callbacks are those that the point was taken with, in the same order (set_callback_states()). All
  // ranks.
  void go_on_at(const LoopPoint& point);

  // Of this rank's callbacks, in order. set_: DataError where there are not as many.
  std::vector<std::string> callback_states() const;
  void set_callback_states(const std::vector<std::string>& states);

  TrainerState& state() { return state_; }
  // This rank's sums under way, for checkpoints: since the last log, and of the epoch.
  RunningLoss& since_log() { return since_log_; }
  RunningLoss& of_epoch() { return of_epoch_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool finished() const;
  void run_epoch();
  LoopPoint counted(const StepResult& result) const;  // without the callbacks
  void finish_step(const StepResult& result);
  StepResult step();
  void after_step();
  void heed_signals();
  Evaluation evaluate();
  void end_epoch(double seconds, int64_t samples_before);
  enum class Logged : uint8_t { kDue, kBeside };
  void log(Logged how);
  RunningLoss reduce(const RunningLoss& mine);
  void count_samples();
  void save(bool best);
  void count_time();

  Communicator comm_;
  TrainTask task_;
  TrainLoopOptions options_;
  std::vector<std::shared_ptr<TrainCallback>> callbacks_;
  std::shared_ptr<TrainerState> kept_;
  TrainerState& state_;
  TrainControl control_;
  std::optional<StopAgreement> agreement_;  // of the latest run()
  int stopped_by_ = 0;
  int64_t saved_step_ = -1;              // when the latest save was
  int64_t evaluated_step_ = -1;          // when the latest evaluation was
  bool best_now_ = false;                // and that it was the best
  std::optional<StepResult> finishing_;  // a step that callbacks are to be told of first
  RunningLoss since_log_, of_epoch_;
  Clock::time_point clock_ = Clock::now(), log_clock_ = Clock::now();
  int64_t log_samples_ = 0;                      // state_.samples when log_clock_ was read
  int64_t counted_ = 0;                          // samples of all ranks, up to the latest reduce()
  int64_t uncounted_ = 0, uncounted_steps_ = 0;  // this rank's samples, and steps, since then
};

}  // namespace lockstep
