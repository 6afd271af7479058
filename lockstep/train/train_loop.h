// TrainLoop: the loop of steps, epochs and evaluations for any model and data set. Trainer
// (trainer.h) and the recipes use it. A TrainTask says what it trains (supervised_task.h makes one
// from a model and a loader), and callbacks watch it (callbacks.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/timeline/trace_steps.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/loop_point.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/stop_agreement.h"
#include "lockstep/train/stop_signals.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0 {

// The seconds of a step on this rank, by part.
struct StepTimes {
  double data = 0;  // waiting for the loader
  double forward = 0;
  double backward = 0;  // without waiting
  double waiting = 0;   // for other ranks, in any part
  double optimizer = 0;
};

// The result of a step on this rank.
struct StepResult {
  DeviceScalar loss = 0;  // mean over this rank's batch
  int64_t samples = 0;    // of this rank's batch
  // The number of targets that the loss is the mean of (CountsTargets); -1: it is one of samples.
  int64_t targets = -1;
  // The number of targets or samples that the loss is the mean of.
  int64_t counted() const { return targets < 0 ? samples : targets; }
  StepTimes times = {};  // zeros if the task does not measure them
  // Seconds outside of communicators' calls; TrainLoop measures them.
  double own = 0;
  double seconds = 0;  // of the step; TrainLoop measures them
  // The memory that the step took for a while; counted in the first step, zeros in the others.
  StepBytes memory = {};
};

// The training of a model. Every function is called on all ranks in the same order, and may
// communicate.
struct TrainTask {
  int64_t steps_per_epoch = 0;
  // Begins epoch `epoch` (from 0) at its step `first_step`, without loading the batches before it.
  std::function<void(int64_t epoch, int64_t first_step)> begin_epoch;
  // The next batch: forward, backward, averaging, optimizer.
  std::function<StepResult()> step;
  // Leaves the model in training mode and the generators as they were. Empty: no evaluation.
  std::function<Evaluation()> evaluate = {};
  // Further figures of a log, by name ("experts/0/entropy"). `step`: the last step. Empty: none.
  std::function<Metrics(int64_t step)> figures = {};
};

// Losses and rates are over all ranks, losses weighted by StepResult::counted().
struct LogEvent {
  double loss = 0;           // mean over the steps since the last log
  double samples_per_s = 0;  // over the same
  Metrics figures = {};      // of the task, on this rank, and of callbacks
  std::vector<std::pair<std::string, std::string>> texts = {};  // of callbacks, by name
};
// An epoch, or the part of it that was trained.
struct EpochEvent {
  double loss = 0;           // mean over the epoch, or over the part that was trained
  double seconds = 0;        // without the evaluation
  double samples_per_s = 0;  // likewise
  std::optional<Evaluation> evaluation = {};
  bool best = false;  // the best so far
};
// Requests of callbacks.
// Requires: all ranks ask for the same.
struct TrainControl {
  bool stop = false;  // end training after this step
};

// Watches a training. Every function is called on every rank and may communicate. Callbacks are
// called in the order in which they were added.
class LOCKSTEP_API TrainCallback {
 public:
  virtual ~TrainCallback() = default;
  // After every step of the optimizer.
  virtual void on_step(const TrainerState&, const StepResult&) {}
  // Adds to a log. It is called for all callbacks before the first on_log(), but not for logs that
  // log_ends adds.
  virtual void before_log(const TrainerState&, LogEvent&) {}
  virtual void on_log(const TrainerState&, const LogEvent&) {}
  // After every evaluation, also the one at the end of an epoch, before on_epoch().
  virtual void on_evaluation(const TrainerState&, const Evaluation&, bool /*best*/, TrainControl&) {
  }
  // After an epoch and its evaluation, also if max_steps has ended the run within the epoch.
  // `state` counts a whole epoch as completed.
  virtual void on_epoch(const TrainerState&, const EpochEvent&) {}
  // When the run should be saved: every save_every steps, after each on_epoch(), and when a signal
  // stops it. `best`: this state has had the best evaluation so far.
  virtual void on_save(TrainerState&, bool /*best*/) {}
  // Once, at the end of training, unless an exception ends it.
  virtual void on_end(const TrainerState&) {}
  // The sums of this rank's callback after the latest of the calls above, for a run that continues
  // in place (recover/recovery.h). They do not communicate. The state should have few bytes, since
  // a copy is sent in every step.
  virtual std::string state() const { return {}; }
  virtual void set_state(const std::string&) {}
  // Adds to this rank's, which is rank 0, what state() had returned on a rank that is gone, where
  // the others go on without it. It is called after set_state().
  virtual void add_state(const std::string&) {}
};

// How long a TrainLoop trains, and what it does on the way.
struct TrainLoopOptions {
  int64_t epochs = 10;          // at most
  int64_t max_steps = 0;        // optimizer steps in all, resumed ones included; 0: no limit
  int64_t log_every = 50;       // steps
  bool log_ends = false;        // also logs the first and the last step, beside those of log_every
  int64_t save_every = 0;       // steps; 0: only at the ends of epochs
  int64_t evaluate_every = 0;   // steps; 0: only at the ends of epochs
  bool evaluate_epochs = true;  // at the end of an epoch, or of training within one
  bool save_epochs = true;      // likewise
  bool save_best = false;       // also saves after each evaluation that is the best so far
  // The best evaluation is the one with the greatest score. Default: its accuracy.
  std::function<double(const Evaluation&)> score = {};
  // Returns the signal that tells this rank to stop; 0: none. If any rank is told to, all ranks
  // save and stop after the same step, about half a second later (stop_agreement.h); at the end of
  // an epoch they evaluate before. The process listens for SIGTERM and SIGUSR1 (stop_signals.h)
  // during run(). Empty, on all ranks: it does not.
  std::function<int()> stop_signal = StopSignals::received;
  // The loop marks its steps, logs, evaluations and checkpoints in it, and TrainStep the parts of a
  // step. With TimelineOptions::nvtx all of them are NVTX ranges, whichever steps are traced. Null:
  // nothing is marked.
  std::shared_ptr<Timeline> timeline = nullptr;
  // The steps that the timeline shows, with what lies between them and before the step after the
  // last. The loop starts it and writes `trace_file`; a trace that cannot be written is a warning. A
  // resumed run, and one that goes on where ranks were replaced, shows those that it trains itself.
  // nullopt: others start and stop it.
  std::optional<TraceSteps> trace_steps = {};
  std::filesystem::path trace_file = {};  // where rank 0 writes them
};

class LOCKSTEP_API TrainLoop {
 public:
  // The loop keeps its state in `state`, which others may read at any time. It overwrites what was
  // there. Null: the loop has its own.
  TrainLoop(Communicator comm, TrainTask task, TrainLoopOptions options,
            std::shared_ptr<TrainerState> state = nullptr);

  // A callback, after those that are there. Null: another rank has one in this place. Where ranks
  // may die, all of them have the same places, since a callback's state may go to another rank.
  void add(std::shared_ptr<TrainCallback> callback) {
    callbacks_.push_back(callback ? std::move(callback) : std::make_shared<TrainCallback>());
  }

  // Trains to the end, from where state() says.
  // Collective: all ranks.
  // Throws: what the task and the callbacks throw; Error if the loss of a log is not finite; what
  // the communicator throws.
  void run();
  // The signal that stopped the latest run(), the same on all ranks; 0: none.
  int stopped_by() const { return stopped_by_; }

  // The point where this rank will stand after the present step, of which only the update is left.
  LoopPoint point_after(const StepResult& result) const;
  // The point where this rank stands before run(), at the start or after a checkpoint was read.
  LoopPoint point() const;
  // The next run() begins with what follows the step of that point: log, evaluation and save.
  // Requires: the callbacks that the point was taken with, in the same order. All ranks call it.
  void go_on_at(const LoopPoint& point);

  // The states of this rank's callbacks, in order.
  // Throws: set_callback_states() throws DataError for another number of callbacks.
  std::vector<std::string> callback_states() const;
  void set_callback_states(const std::vector<std::string>& states);

  TrainerState& state() { return state_; }  // the position
  // This rank's sums since the last log and of the epoch, for checkpoints.
  RunningLoss& since_log() { return since_log_; }
  // The same of the present epoch.
  RunningLoss& of_epoch() { return of_epoch_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool finished() const;
  void run_epoch();
  LoopPoint counted(const StepResult& result) const;  // without the callbacks
  void finish_step(const StepResult& result);
  StepResult step();
  enum class Next : uint8_t { kStep, kEnd };
  void trace(Next next);
  void write_trace(const TraceSteps& shown);
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
  int64_t begun_step_ = 0;               // state_.step when the latest run() began
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

}  // namespace lockstep::inline v0
