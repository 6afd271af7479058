#include "lockstep/train/trainer_parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {

TrainSpec spec_of(const TrainingArguments& args) {
  const std::filesystem::path output = args.output_dir;
  TrainSpec spec{
      .data = {.batch_size = args.per_device_train_batch_size,
               .group_by_length = args.group_by_length,
               .drop_last = args.dataloader_drop_last,
               .workers = args.dataloader_num_workers,
               .seed = args.seed},
      .step = {.optimizer = {.lr = args.learning_rate,
                             .beta1 = args.adam_beta1,
                             .beta2 = args.adam_beta2,
                             .eps = args.adam_epsilon,
                             .weight_decay = args.weight_decay,
                             .no_decay = optim::NoDecay{}},
               .precision = args.bf16   ? optim::Precision::kBFloat16
                            : args.fp16 ? optim::Precision::kFloat16
                                        : optim::Precision::kFloat32,
               .max_norm = args.max_grad_norm,
               .accumulation = args.gradient_accumulation_steps},
      .epochs = args.num_train_epochs,
      .max_steps_alone = true,
      .loop = {.max_steps = std::max<int64_t>(args.max_steps, 0),
               .log_every = args.logging_steps,
               .save_every = args.save_strategy == "steps" ? args.save_steps : 0,
               .evaluate_every =
                   args.eval_strategy == "steps" ? args.eval_steps.value_or(args.logging_steps) : 0,
               .evaluate_epochs = args.eval_strategy == "epoch",
               .save_epochs = args.save_strategy == "epoch",
               .save_best = args.save_strategy == "best",
               .score = score_of(args)},
      .check_replicas = args.check_replicas,
      .evict_stragglers = args.evict_stragglers,
      .ema = args.ema,
      .ema_buffers = args.ema_buffers,
      .output = {.folder = output,
                 .checkpoints = output,
                 .saves = args.save_strategy != "no",
                 .kept = args.save_total_limit,
                 .async_save = args.async_save,
                 .progress = !args.disable_tqdm,
                 .metrics_port = args.metrics_port}};
  optim::ScheduleSpec& schedule = spec.step.schedule;
  if (args.lr_scheduler_type != "constant") {
    if (args.lr_scheduler_type != "constant_with_warmup") schedule.name = args.lr_scheduler_type;
    schedule.warmup_steps = args.warmup_steps;
    schedule.warmup_ratio = args.warmup_ratio;
  }
  add_trace(spec.loop, args.trace_steps, args.trace_operators, args.nvtx, output / "trace.json");
  if (!args.stop_on_signals) spec.loop.stop_signal = nullptr;
  if (args.resume_from_checkpoint == "true")
    spec.output.resume = output / "last";
  else if (!args.resume_from_checkpoint.empty())
    spec.output.resume = args.resume_from_checkpoint;
  return spec;
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

}  // namespace lockstep::inline v0
