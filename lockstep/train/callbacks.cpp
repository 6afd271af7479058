#include "lockstep/train/callbacks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/report/table.h"

namespace lockstep {

int64_t epoch_number(const TrainerState& state) {
  return state.epoch + (state.step_in_epoch > 0 ? 1 : 0);
}

void MetricsCallback::on_log(const TrainerState& state, const LogEvent& event) {
  writer_.write({{"type", "train"},
                 {"step", state.step},
                 {"epoch", epoch_number(state)},
                 {"loss", event.loss},
                 {"samples_per_s", event.samples_per_s},
                 {"seconds", state.seconds}});
}

void MetricsCallback::on_epoch(const TrainerState& state, const EpochEvent& event) {
  if (!event.evaluation) return;
  writer_.write({{"type", "test"},
                 {"step", state.step},
                 {"epoch", epoch_number(state)},
                 {"loss", event.evaluation->loss},
                 {"accuracy", event.evaluation->accuracy},
                 {"samples", event.evaluation->samples},
                 {"train_loss", event.loss},
                 {"samples_per_s", event.samples_per_s},
                 {"seconds", state.seconds},
                 {"best", event.best}});
}

void MetricsCallback::on_save(TrainerState& state, bool) {
  state.metrics_bytes = writer_.size();
}

ProgressCallback::ProgressCallback(ProgressCallbackOptions options)
    : options_(options), bar_({.terminal = options.terminal}) {}

std::string ProgressCallback::label(const TrainerState& state) const {
  return "epoch " + std::to_string(epoch_number(state)) + "/" + std::to_string(options_.epochs);
}

void ProgressCallback::on_step(const TrainerState& state, const StepResult& result) {
  const auto now = ProgressBar::Clock::now();
  if (first_step_ < 0) {
    first_step_ = state.step - 1;
    first_samples_ = state.samples - result.samples * options_.ranks;
  }
  Progress progress{
      .label = label(state), .done = state.step_in_epoch, .total = options_.steps_per_epoch};
  constexpr double kNew = 0.1;
  loss_ = loss_ < 0 ? result.loss : (1 - kNew) * loss_ + kNew * result.loss;
  progress.loss = loss_;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds > 0) {
    int64_t all = options_.epochs * options_.steps_per_epoch;
    if (options_.max_steps > 0) all = std::min(all, options_.max_steps);
    progress.samples_per_s = static_cast<double>(state.samples - first_samples_) / seconds;
    progress.seconds_left = seconds / static_cast<double>(state.step - first_step_) *
                            static_cast<double>(std::max<int64_t>(all - state.step, 0));
  }
  bar_.update(progress, now);
}

void ProgressCallback::on_epoch(const TrainerState& state, const EpochEvent& event) {
  std::string line = label(state) + ": loss " + fixed(event.loss, 4);
  if (event.evaluation) {
    line +=
        ", test accuracy " + percent(event.evaluation->accuracy, 2) + (event.best ? " (best)" : "");
  }
  line += ", " + duration_text(event.seconds) + ", " + fixed(event.samples_per_s, 0) + " samples/s";
  bar_.finish(line);
}

}  // namespace lockstep
