#include "lockstep/train/training_arguments.h"

#include <algorithm>
#include <cmath>

#include "lockstep/train/settings.h"

namespace lockstep {
namespace {

// Every argument once: name, member.
template <class Arguments, class Visit>
void visit_arguments(Arguments& a, const Visit& visit) {
  visit("output_dir", a.output_dir);
  visit("per_device_train_batch_size", a.per_device_train_batch_size);
  visit("per_device_eval_batch_size", a.per_device_eval_batch_size);
  visit("gradient_accumulation_steps", a.gradient_accumulation_steps);
  visit("num_train_epochs", a.num_train_epochs);
  visit("max_steps", a.max_steps);
  visit("learning_rate", a.learning_rate);
  visit("weight_decay", a.weight_decay);
  visit("adam_beta1", a.adam_beta1);
  visit("adam_beta2", a.adam_beta2);
  visit("adam_epsilon", a.adam_epsilon);
  visit("max_grad_norm", a.max_grad_norm);
  visit("lr_scheduler_type", a.lr_scheduler_type);
  visit("warmup_ratio", a.warmup_ratio);
  visit("warmup_steps", a.warmup_steps);
  visit("bf16", a.bf16);
  visit("fp16", a.fp16);
  visit("logging_steps", a.logging_steps);
  visit("eval_strategy", a.eval_strategy);
  visit("eval_steps", a.eval_steps);
  visit("save_strategy", a.save_strategy);
  visit("save_steps", a.save_steps);
  visit("save_total_limit", a.save_total_limit);
  visit("async_save", a.async_save);
  visit("load_best_model_at_end", a.load_best_model_at_end);
  visit("metric_for_best_model", a.metric_for_best_model);
  visit("greater_is_better", a.greater_is_better);
  visit("seed", a.seed);
  visit("dataloader_num_workers", a.dataloader_num_workers);
  visit("dataloader_drop_last", a.dataloader_drop_last);
  visit("group_by_length", a.group_by_length);
  visit("disable_tqdm", a.disable_tqdm);
  visit("stop_on_signals", a.stop_on_signals);
  visit("check_replicas", a.check_replicas);
  visit("evict_stragglers", a.evict_stragglers);
  visit("resume_from_checkpoint", a.resume_from_checkpoint);
}

void in_range(const char* name, double value, double least, double below) {
  if (!(value >= least && value < below))
    settings::refuse(name, nlohmann::json(value).dump(),
                     nlohmann::json(least).dump() + " or more" +
                         (std::isinf(below) ? "" : ", below " + nlohmann::json(below).dump()));
}

void check_strategies(const TrainingArguments& a) {
  settings::check_choice("eval_strategy", a.eval_strategy, {"no", "steps", "epoch"});
  settings::check_choice("save_strategy", a.save_strategy, {"no", "steps", "epoch", "best"});
  if (!a.load_best_model_at_end && a.save_strategy != "best") return;
  if (a.eval_strategy == "no")
    throw InvalidArgument(
        "eval_strategy is 'no', but the best model is wanted; give 'steps' or 'epoch'");
  const bool saved_too = a.save_strategy == "best" || a.save_strategy == a.eval_strategy;
  if (!saved_too)
    throw InvalidArgument(
        "load_best_model_at_end needs a checkpoint of every evaluation: "
        "save_strategy is '" +
        a.save_strategy + "', eval_strategy '" + a.eval_strategy +
        "'; give the same, or save_strategy 'best'");
  if (a.save_strategy == "steps" && a.save_steps % a.eval_steps.value_or(a.logging_steps) != 0)
    throw InvalidArgument("save_steps is " + std::to_string(a.save_steps) +
                          "; with load_best_model_at_end it must be a multiple of eval_steps, " +
                          std::to_string(a.eval_steps.value_or(a.logging_steps)));
}

}  // namespace

void check(const TrainingArguments& a) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (a.output_dir.empty()) settings::refuse("output_dir", "", "a directory");
  settings::at_least("per_device_train_batch_size", a.per_device_train_batch_size, 1);
  settings::at_least("per_device_eval_batch_size", a.per_device_eval_batch_size, 1);
  settings::at_least("gradient_accumulation_steps", a.gradient_accumulation_steps, 1);
  in_range("num_train_epochs", a.num_train_epochs, 0, 1e9);
  in_range("learning_rate", a.learning_rate, 0, kAny);
  in_range("weight_decay", a.weight_decay, 0, kAny);
  in_range("adam_beta1", a.adam_beta1, 0, 1);
  in_range("adam_beta2", a.adam_beta2, 0, 1);
  in_range("adam_epsilon", a.adam_epsilon, 0, kAny);
  in_range("max_grad_norm", a.max_grad_norm, 0, kAny);
  settings::check_choice("lr_scheduler_type", a.lr_scheduler_type,
                         {"linear", "cosine", "constant", "constant_with_warmup"});
  if (!(a.warmup_ratio >= 0 && a.warmup_ratio <= 1))
    settings::refuse("warmup_ratio", nlohmann::json(a.warmup_ratio).dump(), "0 to 1");
  settings::at_least("warmup_steps", a.warmup_steps, 0);
  if (a.bf16 && a.fp16) throw InvalidArgument("bf16 and fp16 are both on; choose one");
  settings::at_least("logging_steps", a.logging_steps, 1);
  if (a.eval_steps) settings::at_least("eval_steps", *a.eval_steps, 1);
  settings::at_least("save_steps", a.save_steps, 1);
  settings::at_least("save_total_limit", a.save_total_limit, 0);
  settings::at_least("seed", a.seed, 0);
  settings::at_least("dataloader_num_workers", a.dataloader_num_workers, 0);
  settings::at_least("check_replicas", a.check_replicas, 0);
  if (a.evict_stragglers != 0) in_range("evict_stragglers", a.evict_stragglers, 1.01, kAny);
  if (a.metric_for_best_model.empty())
    settings::refuse("metric_for_best_model", "", "a metric's name");
  check_strategies(a);
}

std::string to_json(const TrainingArguments& arguments) {
  nlohmann::ordered_json json;
  visit_arguments(arguments, [&](const char* name, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (requires(const Value& v) { v.has_value(); }) {
      json[name] = nullptr;
      if (value) json[name] = *value;
    } else {
      json[name] = value;
    }
  });
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TrainingArguments training_arguments_from_json(std::string_view text, const std::string& source,
                                               TrainingArguments base) {
  settings::read_members(
      settings::parse_object(text, source), source, base,
      [](auto& arguments, const auto& each) { visit_arguments(arguments, each); });
  try {
    check(base);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(source + ": " + error.what());
  }
  return base;
}

std::string best_metric(const TrainingArguments& arguments) {
  const std::string& name = arguments.metric_for_best_model;
  return name.starts_with("eval_") ? name : "eval_" + name;
}

bool best_is_greatest(const TrainingArguments& arguments) {
  return arguments.greater_is_better.value_or(!best_metric(arguments).ends_with("loss"));
}

TrainingSteps training_steps(const TrainingArguments& arguments, int64_t batches) {
  const int64_t group = arguments.gradient_accumulation_steps;
  TrainingSteps steps{.per_epoch = (batches + group - 1) / group};
  steps.all = arguments.max_steps > 0
                  ? arguments.max_steps
                  : static_cast<int64_t>(std::ceil(arguments.num_train_epochs *
                                                   static_cast<double>(steps.per_epoch)));
  return steps;
}

}  // namespace lockstep
