#include "lockstep/train/trainer_parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/report/jsonl.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/checkpointing.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/requeue_note.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/straggler.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// As transformers rounds what it prints of times.
double rounded(double value, int digits) {
  const double unit = std::pow(10, digits);
  return std::round(value * unit) / unit;
}

// Keeps the mean loss of all steps.
class TrainingLoss final : public TrainCallback {
 public:
  void on_step(const TrainerState&, const StepResult& result) override {
    sum_.add(result.loss, result.counted());
  }
  const RunningLoss& sum() const { return sum_; }
  std::string state() const override {
    const Numbers numbers{sum_.loss, sum_.samples};
    return {reinterpret_cast<const char*>(numbers.data()), sizeof numbers};
  }
  void set_state(const std::string& state) override {
    Numbers numbers;
    if (state.size() != sizeof numbers) throw DataError("TrainingLoss: its state is damaged");
    std::memcpy(numbers.data(), state.data(), sizeof numbers);
    sum_ = {numbers[0], numbers[1]};
  }

 private:
  using Numbers = std::array<double, 2>;
  RunningLoss sum_;
};

// {'loss': 1.6, 'learning_rate': 2.5e-05, 'epoch': 0.35} on stdout.
class PrintCallback final : public TrainCallback {
 public:
  PrintCallback(Communicator comm, const TrainingArguments& args, const TrainingSteps& steps)
      : comm_(std::move(comm)), rates_(learning_rates(args, steps.all)), steps_(steps) {}
  void on_log(const TrainerState& state, const LogEvent& event) override {
    print_metrics(comm_, {{"loss", rounded(event.loss, 4)},
                          {"learning_rate", rates_(state.step - 1)},
                          {"epoch", epoch(state)}});
  }
  void on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                     TrainControl&) override {
    print_metrics(comm_, evaluation.metrics);
  }

 private:
  double epoch(const TrainerState& state) const {
    return rounded(static_cast<double>(state.step) / static_cast<double>(steps_.per_epoch), 2);
  }

  Communicator comm_;
  std::function<double(int64_t)> rates_;
  TrainingSteps steps_;
};

}  // namespace

torch::optim::AdamWOptions adam_options(const TrainingArguments& args) {
  return torch::optim::AdamWOptions(args.learning_rate)
      .betas({args.adam_beta1, args.adam_beta2})
      .eps(args.adam_epsilon)
      .weight_decay(args.weight_decay);
}

std::function<double(int64_t)> learning_rates(const TrainingArguments& args, int64_t steps) {
  optim::ScheduleOptions options{
      .total_steps = steps, .warmup = {.steps = args.warmup_steps, .ratio = args.warmup_ratio}};
  if (args.lr_scheduler_type == "constant") options = {};
  const auto schedule = args.lr_scheduler_type == "linear"   ? optim::linear(options)
                        : args.lr_scheduler_type == "cosine" ? optim::cosine(options)
                                                             : optim::constant(options);
  return
      [schedule, rate = args.learning_rate](int64_t step) { return rate * schedule.factor(step); };
}

std::function<double(const Evaluation&)> score_of(const TrainingArguments& args) {
  return [name = best_metric(args),
          sign = best_is_greatest(args) ? 1.0 : -1.0](const Evaluation& evaluation) {
    if (const auto value = find_metric(evaluation.metrics, name)) return sign * *value;
    std::vector<std::string> names;
    for (const auto& metric : evaluation.metrics) names.push_back(metric.first);
    throw InvalidArgument("metric_for_best_model: there is no metric '" + name + "'; there are " +
                          joined(names));
  };
}

TrainLoopOptions loop_options(const TrainingArguments& args, const TrainingSteps& steps) {
  TrainLoopOptions options;
  options.epochs = (steps.all + steps.per_epoch - 1) / std::max<int64_t>(steps.per_epoch, 1);
  options.max_steps = steps.all;
  options.log_every = args.logging_steps;
  options.evaluate_every =
      args.eval_strategy == "steps" ? args.eval_steps.value_or(args.logging_steps) : 0;
  options.evaluate_epochs = args.eval_strategy == "epoch";
  options.save_every = args.save_strategy == "steps" ? args.save_steps : 0;
  options.save_epochs = args.save_strategy == "epoch";
  options.save_best = args.save_strategy == "best";
  options.score = score_of(args);
  if (!args.stop_on_signals) options.stop_signal = nullptr;
  return options;
}

void claim_output(ModelOnRanks& run, const TrainingArguments& args) {
  on_root(run.comm(), [&] { run.claim(args.output_dir); });
}

std::optional<std::filesystem::path> resumed_checkpoint(Communicator& comm,
                                                        const TrainingArguments& args) {
  const std::filesystem::path last = std::filesystem::path(args.output_dir) / "last";
  if (goes_on_from_last(comm, args.output_dir, last)) return last;
  if (args.resume_from_checkpoint.empty()) return std::nullopt;
  std::filesystem::path path = args.resume_from_checkpoint == "true"
                                   ? std::filesystem::path(args.output_dir) / "last"
                                   : std::filesystem::path(args.resume_from_checkpoint);
  if (!checkpoint_exists(path))
    throw CheckpointError(path.string() + ": there is no checkpoint to resume from");
  return path;
}

void load_best_model(Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                     const TrainingArguments& args) {
  comm.barrier();  // rank 0 has written it
  const std::filesystem::path path = std::filesystem::path(args.output_dir) / "best";
  if (!checkpoint_exists(path)) return;  // never evaluated
  load_model(comm, model, strategy, path);
}

EarlyStoppingCallback::EarlyStoppingCallback(const TrainingArguments& args, int64_t patience,
                                             double threshold)
    : score_(score_of(args)), patience_(patience), threshold_(threshold) {
  if (patience < 1) throw InvalidArgument("EarlyStoppingCallback: patience must be 1 or more");
}

void EarlyStoppingCallback::on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                                          TrainControl& control) {
  const double score = score_(evaluation);
  if (!best_ || score > *best_ + threshold_) {
    best_ = score;
    waited_ = 0;
  } else if (++waited_ >= patience_) {
    control.stop = true;
  }
}

std::string EarlyStoppingCallback::state() const {
  nlohmann::json json{waited_};
  if (best_) json.push_back(*best_);
  return json.dump();
}

void EarlyStoppingCallback::set_state(const std::string& state) {
  const nlohmann::json json = nlohmann::json::parse(state, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty() || json.size() > 2)
    throw DataError("EarlyStoppingCallback: its state is damaged");
  waited_ = json.at(0).get<int64_t>();
  best_.reset();
  if (json.size() > 1) best_ = json.at(1).get<double>();
}

void print_metrics(const Communicator& comm, const Metrics& metrics) {
  if (comm.rank() == 0) write_all(STDOUT_FILENO, to_text(metrics) + "\n");
}

namespace {

// What a Trainer leaves in its folder.
std::vector<std::string> parts_of_run(const std::filesystem::path& folder) {
  std::vector<std::string> parts{RunFolder{}.metrics().string(),
                                 RunFolder{}.memory().string(),
                                 in_chinese(RunFolder{}.memory()).string(),
                                 RunFolder{}.job().string(),
                                 "last",
                                 "best",
                                 requeue_file(folder).filename().string()};
  for (const int64_t step : checkpoint_steps(folder))
    parts.push_back(checkpoint_of_step(folder, step).filename().string());
  return parts;
}

}  // namespace

void add_standard_callbacks(TrainLoop& loop, Communicator& comm, const TrainingArguments& args,
                            const TrainingSteps& steps, Strategy& strategy,
                            torch::optim::Optimizer& optimizer, RunStart start) {
  if (comm.size() > 1) loop.add(straggler_report(comm, args.evict_stragglers));
  on_root(comm, [&] {
    const std::filesystem::path folder = args.output_dir;
    const bool anew = start == RunStart::kAnew || start == RunStart::kAgain;
    if (start == RunStart::kAnew) {
      if (const auto moved = make_room_for_run(folder, parts_of_run(folder), process_env()))
        write_all(STDERR_FILENO, *moved + "\n");
    } else {
      name_job(folder, process_env());
    }
    remove_requeue_note(folder);
    JsonlWriter metrics(RunFolder{folder}.metrics(),
                        anew ? JsonlWriter::Mode::kReplace : JsonlWriter::Mode::kAppend);
    if (start == RunStart::kResumed) metrics.truncate(loop.state().metrics_bytes);
    loop.add(std::make_shared<MetricsCallback>(std::move(metrics)));
  });
  if (comm.rank() != 0) return;
  std::function<void(const std::string&)> say;
  if (!args.disable_tqdm && (start == RunStart::kAnew || start == RunStart::kResumed))
    say = [](const std::string& line) { write_all(STDERR_FILENO, line + "\n"); };
  loop.add(std::make_shared<MemoryCallback>(strategy, optimizer, std::move(say),
                                            RunFolder{args.output_dir}.memory()));
  if (!args.disable_tqdm) {
    loop.add(std::make_shared<ProgressCallback>(ProgressCallbackOptions{
        .terminal = find_terminal(STDERR_FILENO, process_env()),
        .epochs = (steps.all + steps.per_epoch - 1) / std::max<int64_t>(steps.per_epoch, 1),
        .steps_per_epoch = steps.per_epoch,
        .max_steps = steps.all,
        .ranks = comm.size()}));
  }
  loop.add(std::make_shared<PrintCallback>(comm, args, steps));
}

TrainOutput run_training(ModelOnRanks& run, TrainLoop& loop, const TrainingSteps& steps) {
  Communicator& comm = run.comm();
  const auto loss = std::make_shared<TrainingLoss>();
  loop.add(loss);
  const ModelOnRanks::Training training(run, loop);
  const auto start = Clock::now();
  const int64_t first = loop.state().step, samples = loop.state().samples;
  loop.run();
  const double seconds = seconds_since(start);
  const at::Tensor sums = at::tensor({loss->sum().loss.value(), loss->sum().samples}, at::kDouble);
  comm.all_reduce(sums);
  TrainOutput output{.global_step = loop.state().step, .stopped_by = loop.stopped_by()};
  const double* values = sums.const_data_ptr<double>();
  output.training_loss = values[1] > 0 ? values[0] / values[1] : 0;
  const auto rate = [&](int64_t count) {
    return seconds > 0 ? rounded(static_cast<double>(count) / seconds, 3) : 0;
  };
  output.metrics = {
      {"train_runtime", rounded(seconds, 4)},
      {"train_samples_per_second", rate(loop.state().samples - samples)},
      {"train_steps_per_second", rate(loop.state().step - first)},
      {"train_loss", output.training_loss},
      {"epoch", rounded(static_cast<double>(loop.state().step) /
                            static_cast<double>(std::max<int64_t>(1, steps.per_epoch)),
                        2)}};
  print_metrics(comm, output.metrics);
  return output;
}

void tell_of_stop(Communicator& comm, const TrainingArguments& args, const TrainOutput& output) {
  if (output.stopped_by == 0) return;
  const bool saved = args.save_strategy != "no";
  const std::filesystem::path last = std::filesystem::path(args.output_dir) / "last";
  on_root(comm, [&] {
    if (saved) {
      write_requeue_note(
          args.output_dir,
          {.signal = output.stopped_by, .step = output.global_step, .checkpoint = last});
    }
    write_all(STDERR_FILENO, "stopped by " + stop_signal_name(output.stopped_by) + " after step " +
                                 std::to_string(output.global_step) +
                                 (saved ? ", saved in " + last.string() +
                                              "; go on with resume_from_checkpoint \"true\"\n"
                                        : "; nothing is saved, since save_strategy is \"no\"\n"));
  });
}

void PredictionSum::add(const LossOutput& output, int64_t counted) {
  if (output.logits.defined()) logits_.push_back(output.logits.detach().to(at::kFloat).cpu());
  labels_.push_back(output.labels.cpu());
  loss_.add(DeviceScalar(output.loss), counted);
}

EvalPrediction PredictionSum::rows() const {
  if (labels_.empty()) return {};
  return {logits_.empty() ? at::Tensor() : at::cat(logits_), at::cat(labels_)};
}

std::optional<double> PredictionSum::mean_loss(Communicator& comm) const {
  const at::Tensor sums = at::tensor({loss_.loss.value(), loss_.samples}, at::kDouble);
  comm.all_reduce(sums);
  const double* values = sums.const_data_ptr<double>();
  return values[1] > 0 ? std::optional(values[0] / values[1]) : std::nullopt;
}

void make_same(Communicator& comm, EvalPrediction& prediction, double& loss) {
  const at::Tensor number = at::tensor({loss}, at::kDouble);
  comm.broadcast(number, 0);
  loss = number.item<double>();
  for (const at::Tensor& rows : {prediction.predictions, prediction.label_ids})
    if (rows.defined() && rows.numel() > 0) comm.broadcast(rows, 0);
}

Evaluation count_if_classes(const EvalPrediction& prediction) {
  if (prediction.predictions.defined() && prediction.predictions.dim() == 2 &&
      prediction.predictions.size(1) > 1)
    return count_classes(prediction);
  Evaluation evaluation;
  evaluation.samples = prediction.label_ids.size(0);
  return evaluation;
}

void add_metrics(Metrics& metrics, const Metrics& more) {
  for (const auto& [name, value] : more)
    metrics.emplace_back(name.starts_with("eval_") ? name : "eval_" + name, value);
}

void add_rates(Metrics& metrics, double seconds, int64_t samples, int64_t batches) {
  const auto rate = [&](int64_t count) {
    return seconds > 0 ? rounded(static_cast<double>(count) / seconds, 3) : 0;
  };
  metrics.emplace_back("eval_runtime", rounded(seconds, 4));
  metrics.emplace_back("eval_samples_per_second", rate(samples));
  metrics.emplace_back("eval_steps_per_second", rate(batches));
}

}  // namespace lockstep
