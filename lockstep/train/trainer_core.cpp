#include "lockstep/train/trainer_core.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/report/run_report.h"
#include "lockstep/train/averaged_model.h"
#include "lockstep/train/loop_run.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/requeue_note.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/straggler.h"

namespace lockstep::inline v0 {
namespace {

// As transformers rounds what it prints of times.
double rounded(double value, int digits) {
  const double unit = std::pow(10, digits);
  return std::round(value * unit) / unit;
}

double rate(int64_t count, double seconds) {
  return seconds > 0 ? rounded(static_cast<double>(count) / seconds, 3) : 0;
}

double epochs(int64_t step, const RunSteps& steps) {
  return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, steps.per_epoch));
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
  void add_state(const std::string& state) override {
    const RunningLoss own = sum_;
    set_state(state);
    sum_ = {own.loss.value() + sum_.loss.value(), own.samples + sum_.samples};
  }

 private:
  using Numbers = std::array<double, 2>;
  RunningLoss sum_;
};

// Rank 0's line on stdout.
void print_metrics(const Communicator& comm, const Metrics& metrics) {
  if (comm.rank() == 0) write_all(STDOUT_FILENO, to_text(metrics) + "\n");
}

// {'loss': 1.6, 'learning_rate': 2.5e-05, 'epoch': 0.35} on stdout.
class PrintCallback final : public TrainCallback {
 public:
  PrintCallback(Communicator comm, const optim::StepSpec& spec, const RunSteps& steps)
      : comm_(std::move(comm)),
        rates_(optim::rates_of(spec, steps.all, steps.per_epoch)),
        steps_(steps) {}
  void on_log(const TrainerState& state, const LogEvent& event) override {
    print_metrics(comm_, {{"loss", rounded(event.loss, 4)},
                          {"learning_rate", rates_(state.step - 1)},
                          {"epoch", rounded(epochs(state.step, steps_), 2)}});
  }
  void on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                     TrainControl&) override {
    print_metrics(comm_, evaluation.metrics);
  }

 private:
  Communicator comm_;
  std::function<double(int64_t)> rates_;
  RunSteps steps_;
};

// Puts the best checkpoint's parameters into the model; false where nothing was evaluated.
// Collective.
bool load_best_model(Strategy& strategy, const TrainingArguments& args) {
  strategy.comm().barrier();  // rank 0 has written it
  const std::filesystem::path path = std::filesystem::path(args.output_dir) / "best";
  if (!checkpoint_exists(path)) return false;
  load_model(strategy, path);
  return true;
}

// What a Trainer leaves in its folder.
std::vector<std::string> parts_of_run(const std::filesystem::path& folder) {
  std::vector<std::string> parts{RunFolder{}.metrics().string(),
                                 RunFolder{}.memory().string(),
                                 in_chinese(RunFolder{}.memory()).string(),
                                 RunFolder{}.trace().string(),
                                 RunFolder{}.job().string(),
                                 "last",
                                 "best",
                                 requeue_file(folder).filename().string()};
  for (const int64_t step : checkpoint_steps(folder))
    parts.push_back(checkpoint_of_step(folder, step).filename().string());
  return parts;
}

// After a run that a signal has stopped: rank 0 leaves output_dir/requeue (requeue_note.h) where
// checkpoints are saved, and a line on stderr says where it stands. Collective.
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

// Rank 0's on all ranks, which have as many rows. Collective.
void make_same(Communicator& comm, EvalPrediction& prediction, std::optional<double>& loss) {
  const at::Tensor number = at::tensor({loss.value_or(0)}, at::kDouble);
  comm.broadcast(number, 0);
  if (loss) loss = number.item<double>();
  for (const at::Tensor& rows : {prediction.predictions, prediction.label_ids})
    if (rows.defined() && rows.numel() > 0) comm.broadcast(rows, 0);
}

// count_classes() where the predictions are logits of classes; otherwise only the samples.
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

}  // namespace

struct TrainerCore::Forwarded {
  EvalPrediction prediction;
  std::optional<double> loss;  // mean over samples or targets; nothing where there are none
  int64_t batches = 0;
  double seconds = 0;
};

TrainerCore::CoreParts TrainerCore::checked(CoreParts parts) {
  check(parts.args);
  if (!parts.strategy) parts.strategy = make_strategy("ddp");
  check_has_replicas(*parts.strategy, parts.args.check_replicas);
  check_has_average(*parts.strategy, parts.args.ema);
  check_eviction(parts.args.evict_stragglers, process_env());
  check_step(*parts.strategy, "Trainer", parts.args.gradient_accumulation_steps, parts.args.fp16);
  if (parts.strategy->traits().logical_ranks > 0 && parts.args.group_by_length)
    throw InvalidArgument("Trainer: strategy " + parts.strategy->name() +
                          " deals its batches itself; leave group_by_length as it is");
  return parts;
}

TrainerCore::TrainerCore(CoreParts parts)
    : parts_(checked(std::move(parts))),
      spec_(spec_of(parts_.args)),
      run_({.model = parts_.model,
            .strategy = parts_.strategy,
            .comm = parts_.comm,
            .step = spec_.step,
            .initial = std::exchange(parts_.initial, nullptr),
            .copy_every = parts_.copy_every}),
      eval_ranks_(parts_.strategy->placement().evaluation_ranks(run_.comm())) {}

at::Device TrainerCore::device() const {
  return device_of(*parts_.model);
}

std::optional<amp::AutocastSettings> TrainerCore::autocast() const {
  return autocast_of(spec_.step.precision, parts_.comm.device());
}

TrainOutput TrainerCore::train() {
  // Whatever ends it, the folder is others' afterwards.
  struct Release {
    ModelOnRanks& run;
    ~Release() { run.release(); }
  } const release{run_};
  if (!trains()) throw InvalidArgument("Trainer: there is no train_dataset");
  if (run_.recovers() && trained_)
    throw InvalidArgument(
        "Trainer: where ranks are replaced, train() is called once: a new rank cannot know which "
        "of several calls the others are in");
  // Also while ranks that are left meet again.
  std::optional<StopSignals> signals;
  if (parts_.args.stop_on_signals) signals.emplace();
  const TrainOutput output = run_.attempts([this] {
    on_root(run_.comm(), [this] { run_.claim(parts_.args.output_dir); });
    if (run_.recovers()) eval_ranks_ = strategy()->placement().evaluation_ranks(run_.comm());
    return attempt();
  });
  trained_ = true;
  tell_of_stop(run_.comm(), parts_.args, output);
  if (parts_.args.load_best_model_at_end && output.stopped_by == 0 &&
      load_best_model(*strategy(), parts_.args))
    average_.reset();
  return output;
}

TrainOutput TrainerCore::train_by(TrainTask task) {
  steps_ = run_steps(spec_, task.steps_per_epoch);
  const auto loss = std::make_shared<TrainingLoss>();
  average_ = average_of_run(run_, spec_);
  LoopRun run{.run = run_,
              .task = std::move(task),
              .spec = spec_,
              .average = average_,
              .state = state_,
              .former_parts = [folder = spec_.output.folder] { return parts_of_run(folder); },
              .files = parts_.saved,
              .terminal = find_terminal(STDERR_FILENO, process_env())};
  // It prints on rank 0.
  run.callbacks.push_back(std::make_shared<PrintCallback>(run_.comm(), spec_.step, steps_));
  run.callbacks.insert(run.callbacks.end(), parts_.callbacks.begin(), parts_.callbacks.end());
  run.callbacks.push_back(loss);
  TrainOutput output;
  run.at_end = [&](const LoopEnd& end) {
    const at::Tensor sums =
        at::tensor({loss->sum().loss.value(), loss->sum().samples}, at::kDouble);
    run_.comm().all_reduce(sums);
    const double* values = sums.const_data_ptr<double>();
    output = {.global_step = end.state.step,
              .training_loss = values[1] > 0 ? values[0] / values[1] : 0,
              .stopped_by = end.stopped_by};
    output.metrics = {
        {"train_runtime", rounded(end.seconds, 4)},
        {"train_samples_per_second", rate(end.state.samples - end.first_samples, end.seconds)},
        {"train_steps_per_second", rate(end.state.step - end.first_step, end.seconds)},
        {"train_loss", output.training_loss},
        {"epoch", rounded(epochs(end.state.step, steps_), 2)}};
    print_metrics(run_.comm(), output.metrics);
  };
  run_loop(std::move(run));
  return output;
}

void TrainerCore::check_trained() const {
  if (!run_.recovers() || trained_) return;
  throw InvalidArgument(
      "Trainer: where ranks are replaced, train() comes before evaluate(), predict() and "
      "save_model(): a new rank cannot know which of them the others are in");
}

// Null without an average, and before its first update.
std::unique_ptr<optim::ExponentialAverage::InModel> TrainerCore::averaged() const {
  if (!average_ || average_->updates() == 0) return nullptr;
  return std::make_unique<optim::ExponentialAverage::InModel>(*average_);
}

void TrainerCore::save_model(const std::filesystem::path& path) {
  check_trained();
  const auto in_model = averaged();
  lockstep::save_model(*strategy(), parts_.saved, path);
}

Metrics TrainerCore::evaluate() {
  check_trained();
  const auto in_model = averaged();
  Metrics metrics = evaluate_now().metrics;
  print_metrics(run_.comm(), metrics);
  return metrics;
}

std::function<Evaluation()> TrainerCore::evaluation() {
  if (!evaluated()) return {};
  return [this] { return evaluate_now(); };
}

EvalPrediction TrainerCore::predict_all(const Samples& samples) {
  check_trained();
  const auto in_model = averaged();
  return forward_all(samples).prediction;
}

TrainerCore::Forwarded TrainerCore::forward_all(const Samples& samples) {
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const auto whole = strategy()->placement().as_saved();
  PredictionSum sum;
  samples.forward(eval_ranks_, sum);
  Forwarded result;
  result.prediction = gather_predictions(eval_ranks_, sum.rows());
  result.loss = sum.mean_loss(eval_ranks_);
  // Ranks that have evaluated the same together may differ by rounding, and all must decide alike.
  if (strategy()->traits().divides_model) make_same(run_.comm(), result.prediction, result.loss);
  const int64_t batch_size = parts_.args.per_device_eval_batch_size;
  const int64_t own = data::ShardedSequentialSampler(samples.size, eval_ranks_).size();
  result.batches = (own + batch_size - 1) / batch_size;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

Evaluation TrainerCore::evaluate_now() {
  const std::optional<Samples> samples = evaluated();
  if (!samples) throw InvalidArgument("Trainer: there is no eval_dataset");
  const Forwarded all = forward_all(*samples);
  if (parts_.counts_targets && !all.loss)
    throw InvalidArgument(
        "Trainer: by compute_loss.targets() the data set to evaluate on has no target at all, so "
        "there is no loss of it; give one that has some");
  Evaluation evaluation = count_if_classes(all.prediction);
  evaluation.loss = all.loss.value_or(0);
  Metrics& metrics = evaluation.metrics;
  metrics = {{"eval_loss", evaluation.loss}};
  if (parts_.compute_metrics)
    add_metrics(metrics, parts_.compute_metrics(all.prediction));
  else if (all.prediction.predictions.defined())
    metrics.emplace_back("eval_accuracy", evaluation.accuracy);
  metrics.emplace_back("eval_runtime", rounded(all.seconds, 4));
  metrics.emplace_back("eval_samples_per_second",
                       rate(all.prediction.label_ids.size(0), all.seconds));
  metrics.emplace_back("eval_steps_per_second", rate(all.batches, all.seconds));
  metrics.emplace_back("epoch", steps_.per_epoch == 0 ? static_cast<double>(state_->epoch)
                                                      : epochs(state_->step, steps_));
  return evaluation;
}

}  // namespace lockstep::inline v0
