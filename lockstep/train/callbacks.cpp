#include "lockstep/train/callbacks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0 {

int64_t epoch_number(const TrainerState& state) {
  return state.epoch + (state.step_in_epoch > 0 ? 1 : 0);
}

int64_t steps_of_epoch(const TrainerState& state, int64_t steps_per_epoch, int64_t max_steps) {
  const int64_t before = state.step - state.step_in_epoch;
  return max_steps > before ? std::min(steps_per_epoch, max_steps - before) : steps_per_epoch;
}

bool counts_in_diff(std::string_view member) {
  constexpr std::string_view kMachines[] = {
      "seconds", "minutes", "time", "timestamp", "date",
      // StragglerCallback's; where no rank was late they are not there.
      "straggler_rank", "straggler_since_step", "straggler_host"};
  constexpr std::string_view kEnds[] = {"_s",          "_ms",      "_seconds",
                                        "_per_second", "_runtime", "_time"};
  return std::find(std::begin(kMachines), std::end(kMachines), member) == std::end(kMachines) &&
         std::none_of(std::begin(kEnds), std::end(kEnds),
                      [&](std::string_view end) { return member.ends_with(end); });
}

void MetricsCallback::on_log(const TrainerState& state, const LogEvent& event) {
  nlohmann::ordered_json line{{"type", "train"},
                              {"step", state.step},
                              {"epoch", epoch_number(state)},
                              {"loss", event.loss},
                              {"samples_per_s", event.samples_per_s},
                              {"seconds", state.seconds}};
  for (const auto& [name, value] : event.figures)
    if (!line.contains(name)) line[name] = value;
  for (const auto& [name, text] : event.texts)
    if (!line.contains(name)) line[name] = text;
  writer_.write(line);
}

void MetricsCallback::on_epoch(const TrainerState& state, const EpochEvent& event) {
  if (!event.evaluation) return;
  nlohmann::ordered_json line{{"type", "test"},
                              {"step", state.step},
                              {"epoch", epoch_number(state)},
                              {"loss", event.evaluation->loss},
                              {"accuracy", event.evaluation->accuracy}};
  for (const auto& [name, value] : event.evaluation->metrics) {
    if (!line.contains(name)) line[name] = value;
  }
  line["samples"] = event.evaluation->samples;
  line["train_loss"] = event.loss;
  line["samples_per_s"] = event.samples_per_s;
  line["seconds"] = state.seconds;
  line["best"] = event.best;
  writer_.write(line);
}

void MetricsCallback::on_save(TrainerState& state, bool) {
  state.metrics_bytes = writer_.size();
}

std::string MetricsCallback::state() const {
  return std::to_string(writer_.size());
}

void MetricsCallback::set_state(const std::string& state) {
  if (state.empty()) return;
  const auto length = parse_int(state, 0, INT64_MAX);
  if (!length) throw DataError("MetricsCallback: '" + state + "' is no length of a file");
  writer_.truncate(*length);
}

std::string test_accuracy_text(const Evaluation& evaluation) {
  return "test accuracy " + percent(evaluation.accuracy, 2);
}

ProgressCallback::ProgressCallback(ProgressCallbackOptions options)
    : options_(std::move(options)), bar_({.terminal = options_.terminal}) {
  if (const int64_t steps = options_.steps_per_epoch; options_.max_steps > 0 && steps > 0)
    options_.epochs = std::min(options_.epochs, (options_.max_steps + steps - 1) / steps);
}

std::string ProgressCallback::label(const TrainerState& state) const {
  return "epoch " + std::to_string(epoch_number(state)) + "/" + std::to_string(options_.epochs);
}

void ProgressCallback::on_step(const TrainerState& state, const StepResult& result) {
  const auto now = ProgressBar::Clock::now();
  if (first_step_ < 0) {
    first_step_ = state.step - 1;
    first_samples_ = state.samples - result.samples * options_.ranks;
  }
  Progress progress{.label = label(state),
                    .done = state.step_in_epoch,
                    .total = steps_of_epoch(state, options_.steps_per_epoch, options_.max_steps)};
  // A device is not waited for at every step: then it is the loss of the last log.
  of_log_ = result.loss.on_device();
  if (!of_log_) {
    constexpr double kNew = 0.1;
    const double loss = result.loss;
    loss_ = loss_ ? (1 - kNew) * *loss_ + kNew * loss : loss;
  }
  progress.loss = loss_;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds > 0) {
    int64_t all = options_.epochs * options_.steps_per_epoch;
    if (options_.max_steps > 0) all = std::min(all, options_.max_steps);
    progress.counted = options_.counted;
    progress.samples_per_s = static_cast<double>(state.samples - first_samples_) / seconds;
    progress.seconds_left = seconds / static_cast<double>(state.step - first_step_) *
                            static_cast<double>(std::max<int64_t>(all - state.step, 0));
  }
  bar_.update(progress, now);
}

void ProgressCallback::on_log(const TrainerState&, const LogEvent& event) {
  if (of_log_) loss_ = event.loss;
}

void ProgressCallback::on_epoch(const TrainerState& state, const EpochEvent& event) {
  std::string line = label(state) + ": loss " + fixed(event.loss, 4);
  if (event.evaluation) {
    line += ", " + options_.evaluated(*event.evaluation) + (event.best ? " (best)" : "");
  }
  line += ", " + duration_text(event.seconds) + ", " + fixed(event.samples_per_s, 0) + " " +
          options_.counted + "/s";
  bar_.finish(line);
}

}  // namespace lockstep::inline v0
