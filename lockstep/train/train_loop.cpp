#include "lockstep/train/train_loop.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0 {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double rate(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : 0;
}

double mean_of(const RunningLoss& sum) {
  return sum.samples > 0 ? sum.loss.value() / sum.samples : 0;
}

}  // namespace

TrainLoop::TrainLoop(Communicator comm, TrainTask task, TrainLoopOptions options,
                     std::shared_ptr<TrainerState> state)
    : comm_(std::move(comm)),
      task_(std::move(task)),
      options_(std::move(options)),
      kept_(state ? std::move(state) : std::make_shared<TrainerState>()),
      state_(*kept_) {
  if (task_.steps_per_epoch < 1 || !task_.begin_epoch || !task_.step) {
    throw InvalidArgument("TrainLoop: the task has no steps");
  }
  if (options_.epochs < 0 || options_.max_steps < 0 || options_.log_every < 1 ||
      options_.save_every < 0 || options_.evaluate_every < 0) {
    throw InvalidArgument(
        "TrainLoop: epochs, max_steps, save_every and evaluate_every must be 0 or more, log_every "
        "1 or more");
  }
  if (options_.trace_steps && (!options_.timeline || options_.trace_file.empty()))
    throw InvalidArgument("TrainLoop: trace_steps need a timeline and a trace_file");
  state_ = {.steps_per_epoch = task_.steps_per_epoch};
}

bool TrainLoop::finished() const {
  return control_.stop || state_.epoch >= options_.epochs ||
         (options_.max_steps > 0 && state_.step >= options_.max_steps);
}

void TrainLoop::run() {
  if (state_.step_in_epoch >= task_.steps_per_epoch && !finishing_) {
    throw InvalidArgument("TrainLoop: cannot go on at step " +
                          std::to_string(state_.step_in_epoch) + " of epochs of " +
                          std::to_string(task_.steps_per_epoch) +
                          " steps; data or batch size have changed");
  }
  clock_ = Clock::now();
  if (!finishing_) {
    counted_ = state_.samples;
    uncounted_ = uncounted_steps_ = 0;
  }
  control_ = {};
  stopped_by_ = 0;
  begun_step_ = state_.step;
  // Also on the way out of a step that failed: what the timeline holds then is of no use.
  struct Stop {
    TrainLoopOptions& options;
    void now() const noexcept {
      if (options.trace_steps) options.timeline->stop();
    }
    ~Stop() { now(); }
  } const stop{options_};
  stop.now();
  if (options_.timeline) options_.timeline->mark_calls(comm_);
  saved_step_ = -1;
  std::optional<StopSignals> signals;
  agreement_.reset();
  if (options_.stop_signal) {
    signals.emplace();
    agreement_.emplace(comm_, options_.stop_signal);
  }
  while (finishing_ || !finished()) {
    run_epoch();
    if (state_.step_in_epoch == 0) heed_signals();
  }
  // Behind the last save: a run that goes on from there logs as one that never ended.
  const bool due = state_.step % options_.log_every == 0;
  if (options_.log_ends && stopped_by_ == 0 && !due && state_.step > 1) log(Logged::kBeside);
  for (auto& callback : callbacks_) callback->on_end(state_);
  trace(Next::kEnd);
}

void TrainLoop::run_epoch() {
  const auto start = Clock::now();
  const int64_t samples_before = counted_;
  log_clock_ = start;
  log_samples_ = state_.samples;
  if (state_.step_in_epoch < task_.steps_per_epoch)
    task_.begin_epoch(state_.epoch, state_.step_in_epoch);
  if (finishing_) finish_step(*std::exchange(finishing_, std::nullopt));
  while (state_.step_in_epoch < task_.steps_per_epoch && !finished()) {
    const StepResult result = step();
    const LoopPoint now = counted(result);
    state_ = now.state;
    since_log_ = now.since_log;
    of_epoch_ = now.of_epoch;
    uncounted_ = now.uncounted;
    uncounted_steps_ = now.uncounted_steps;
    finish_step(result);
  }
  if (stopped_by_ != 0) return;  // within the epoch, whose end comes another time
  end_epoch(seconds_between(start, Clock::now()), samples_before);
}

LoopPoint TrainLoop::counted(const StepResult& result) const {
  LoopPoint point{.state = state_,
                  .after_update = true,
                  .loss = result.loss,
                  .samples = result.samples,
                  .targets = result.targets,
                  .since_log = since_log_,
                  .of_epoch = of_epoch_,
                  .counted = counted_,
                  .uncounted = uncounted_ + result.samples,
                  .uncounted_steps = uncounted_steps_ + 1,
                  .evaluated_step = evaluated_step_,
                  .callbacks = {}};
  point.since_log.add(result.loss, result.counted());
  point.of_epoch.add(result.loss, result.counted());
  ++point.state.step;
  ++point.state.step_in_epoch;
  point.state.samples = counted_ + point.uncounted * comm_.size();  // until they are counted
  return point;
}

LoopPoint TrainLoop::point_after(const StepResult& result) const {
  LoopPoint point = counted(result);
  point.callbacks = callback_states();
  return point;
}

LoopPoint TrainLoop::point() const {
  return {.state = state_,
          .after_update = false,
          .loss = 0,
          .samples = 0,
          .targets = -1,
          .since_log = since_log_,
          .of_epoch = of_epoch_,
          .counted = state_.samples,
          .uncounted = 0,
          .uncounted_steps = 0,
          .evaluated_step = evaluated_step_,
          .callbacks = callback_states()};
}

std::vector<std::string> TrainLoop::callback_states() const {
  std::vector<std::string> states;
  for (const auto& callback : callbacks_) states.push_back(callback->state());
  return states;
}

void TrainLoop::set_callback_states(const std::vector<std::string>& states) {
  if (states.size() != callbacks_.size())
    throw DataError("TrainLoop: states of " + std::to_string(states.size()) +
                    " callbacks, where there are " + std::to_string(callbacks_.size()));
  for (size_t i = 0; i < callbacks_.size(); ++i) callbacks_[i]->set_state(states[i]);
}

void TrainLoop::go_on_at(const LoopPoint& point) {
  set_callback_states(point.callbacks);
  for (const std::vector<std::string>& gone : point.inherited) {
    if (gone.size() != callbacks_.size()) continue;  // its rank had other callbacks
    for (size_t i = 0; i < gone.size(); ++i) callbacks_[i]->add_state(gone[i]);
  }
  state_ = point.state;
  since_log_ = point.since_log;
  of_epoch_ = point.of_epoch;
  counted_ = point.counted;
  uncounted_ = point.uncounted;
  uncounted_steps_ = point.uncounted_steps;
  evaluated_step_ = point.evaluated_step;
  if (point.after_update)
    finishing_ = {.loss = point.loss,
                  .samples = point.samples,
                  .targets = point.targets,
                  .times = {},
                  .memory = {}};
}

void TrainLoop::finish_step(const StepResult& result) {
  for (auto& callback : callbacks_) callback->on_step(state_, result);
  if (state_.step % options_.log_every == 0)
    log(Logged::kDue);
  else if (options_.log_ends && state_.step == 1)
    log(Logged::kBeside);
  best_now_ = false;
  if (state_.step_in_epoch < task_.steps_per_epoch && !finished()) {
    after_step();
    heed_signals();
  }
}

// Where ranks were replaced, all of them come here with the same state, and begin anew: a trace has
// the steps that all of them have taken since.
void TrainLoop::trace(Next next) {
  if (!options_.trace_steps) return;
  const auto start = Clock::now();
  const auto [first, last] = *options_.trace_steps;
  const TraceSteps shown{std::max(first, begun_step_ + 1), std::min(last, state_.step)};
  const bool any = shown.first <= shown.last;
  if (any && (state_.step == last || (next == Next::kEnd && state_.step < last)))
    write_trace(shown);
  std::error_code ignored;
  if (next == Next::kEnd && !any && comm_.rank() == 0 &&
      !std::filesystem::exists(options_.trace_file, ignored))
    log_warning("there is no trace of the steps " + to_string(*options_.trace_steps) +
                ": this run went from step " + std::to_string(begun_step_) + " to step " +
                std::to_string(state_.step));
  Timeline& timeline = *options_.timeline;
  if (next == Next::kStep && first <= state_.step + 1 && state_.step < last && !timeline.on())
    timeline.start(comm_);
  log_clock_ += Clock::now() - start;
}

void TrainLoop::write_trace(const TraceSteps& shown) {
  try {
    options_.timeline->write(comm_, options_.trace_file, to_string(shown));
  } catch (const TimelineError& error) {  // the same on all ranks
    if (comm_.rank() == 0)
      log_warning(std::string(error.what()) + "; training goes on without the trace");
  }
}

StepResult TrainLoop::step() {
  trace(Next::kStep);
  const auto start = Clock::now();
  const double waited = comm_.waited();
  std::optional<TimelineSpan> span(std::in_place, options_.timeline.get(), "step", state_.step + 1);
  StepResult result = task_.step();
  span.reset();
  result.seconds = seconds_between(start, Clock::now());
  result.own = result.seconds - (comm_.waited() - waited);
  if (options_.timeline) options_.timeline->collect();
  return result;
}

// What is due within an epoch.
void TrainLoop::after_step() {
  const auto due = [this](int64_t every) { return every > 0 && state_.step % every == 0; };
  if (task_.evaluate && due(options_.evaluate_every)) {
    const auto start = Clock::now();
    evaluate();
    log_clock_ += Clock::now() - start;
  }
  if (due(options_.save_every) || (options_.save_best && best_now_)) save(best_now_);
}

// Stops and saves where any rank is told to stop. All ranks alike, between steps.
void TrainLoop::heed_signals() {
  if (!agreement_ || finished()) return;
  stopped_by_ = agreement_->after_step();
  if (stopped_by_ == 0) return;
  control_.stop = true;
  if (saved_step_ != state_.step) save(best_now_);
}

Evaluation TrainLoop::evaluate() {
  const TimelineSpan span(options_.timeline.get(), "evaluation");
  count_samples();
  Evaluation evaluation = task_.evaluate();
  const double score = options_.score ? options_.score(evaluation) : evaluation.accuracy;
  evaluated_step_ = state_.step;
  best_now_ = state_.best_step == 0 || score > state_.best_score;
  state_.accuracy = evaluation.accuracy;
  if (best_now_) {
    state_.best_score = score;
    state_.best_step = state_.step;
  }
  count_time();
  for (auto& callback : callbacks_)
    callback->on_evaluation(state_, evaluation, best_now_, control_);
  return evaluation;
}

void TrainLoop::end_epoch(double seconds, int64_t samples_before) {
  const auto start = Clock::now();
  EpochEvent event;
  event.loss = mean_of(reduce(of_epoch_));
  event.seconds = seconds;
  event.samples_per_s = rate(static_cast<double>(state_.samples - samples_before), seconds);
  const bool due = options_.evaluate_epochs ||
                   (options_.evaluate_every > 0 && state_.step % options_.evaluate_every == 0);
  if (task_.evaluate && due && evaluated_step_ != state_.step) event.evaluation = evaluate();
  event.best = best_now_;
  if (state_.step_in_epoch == task_.steps_per_epoch) {
    ++state_.epoch;
    state_.step_in_epoch = 0;
    of_epoch_ = {};
  }
  count_time();
  for (auto& callback : callbacks_) callback->on_epoch(state_, event);
  const bool save_due = options_.save_every > 0 && state_.step % options_.save_every == 0;
  if (options_.save_epochs || save_due || (options_.save_best && event.best)) save(event.best);
  log_clock_ += Clock::now() - start;
}

void TrainLoop::log(Logged how) {
  const TimelineSpan span(options_.timeline.get(), "log");
  const auto now = Clock::now();
  LogEvent event;
  const RunningLoss all = reduce(since_log_);
  if (all.samples == 0 && how == Logged::kBeside) return;  // there was no step since
  event.loss = mean_of(all);
  event.samples_per_s =
      rate(static_cast<double>(state_.samples - log_samples_), seconds_between(log_clock_, now));
  if (!std::isfinite(event.loss)) {
    throw Error("the loss became " + std::to_string(event.loss) + " by step " +
                std::to_string(state_.step) +
                "; lower the learning rate, or look for broken input");
  }
  if (how == Logged::kDue) {
    since_log_ = {};
    log_clock_ = now;
    log_samples_ = state_.samples;
  }
  count_time();
  if (task_.figures) event.figures = task_.figures(state_.step);
  // What these count is from one due log to the next.
  if (how == Logged::kDue)
    for (auto& callback : callbacks_) callback->before_log(state_, event);
  for (auto& callback : callbacks_) callback->on_log(state_, event);
}

// Besides, the samples that were not counted yet are: ranks may have unequal batches, and the last
// one of an epoch may be smaller.
RunningLoss TrainLoop::reduce(const RunningLoss& mine) {
  const at::Tensor sums = at::empty({3}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  values[0] = mine.loss;
  values[1] = mine.samples;
  values[2] = static_cast<double>(uncounted_);
  comm_.all_reduce(sums);
  const double* all = sums.const_data_ptr<double>();
  counted_ += static_cast<int64_t>(all[2]);
  state_.samples = counted_;
  uncounted_ = uncounted_steps_ = 0;
  return {all[0], all[1]};
}

void TrainLoop::count_samples() {
  if (uncounted_steps_ > 0) reduce({});  // the same on all ranks
}

void TrainLoop::save(bool best) {
  const TimelineSpan span(options_.timeline.get(), "checkpoint");
  saved_step_ = state_.step;
  count_samples();
  count_time();
  for (auto& callback : callbacks_) callback->on_save(state_, best);
}

void TrainLoop::count_time() {
  const auto now = Clock::now();
  state_.seconds += seconds_between(clock_, now);
  clock_ = now;
}

}  // namespace lockstep::inline v0
