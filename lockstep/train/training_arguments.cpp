#include "lockstep/train/training_arguments.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/core/json_object.h"
#include "lockstep/core/text.h"
#include "lockstep/train/settings.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {
namespace {

// Every argument once: name, member, and what it takes where its type does not say it.
constexpr auto kArguments = [](auto& a, const auto& each) {
  using namespace settings;
  const auto visit = [&](std::string_view name, auto& member, const Takes& takes = {}) {
    each(Field{.name = name, .takes = takes}, member);
  };
  visit("output_dir", a.output_dir);
  visit("per_device_train_batch_size", a.per_device_train_batch_size, at_least(1));
  visit("per_device_eval_batch_size", a.per_device_eval_batch_size, at_least(1));
  visit("gradient_accumulation_steps", a.gradient_accumulation_steps, at_least(1));
  visit("num_train_epochs", a.num_train_epochs, from_below(0, 1e9));
  visit("max_steps", a.max_steps);
  visit("learning_rate", a.learning_rate, at_least(0));
  visit("weight_decay", a.weight_decay, at_least(0));
  visit("adam_beta1", a.adam_beta1, from_below(0, 1));
  visit("adam_beta2", a.adam_beta2, from_below(0, 1));
  visit("adam_epsilon", a.adam_epsilon, at_least(0));
  visit("max_grad_norm", a.max_grad_norm, at_least(0));
  visit("lr_scheduler_type", a.lr_scheduler_type,
        one_of("linear|cosine|constant|constant_with_warmup"));
  visit("warmup_ratio", a.warmup_ratio, between(0, 1));
  visit("warmup_steps", a.warmup_steps, at_least(0));
  visit("bf16", a.bf16);
  visit("fp16", a.fp16);
  visit("logging_steps", a.logging_steps, at_least(1));
  visit("eval_strategy", a.eval_strategy, one_of("no|steps|epoch"));
  visit("eval_steps", a.eval_steps, at_least(1));
  visit("save_strategy", a.save_strategy, one_of("no|steps|epoch|best"));
  visit("save_steps", a.save_steps, at_least(1));
  visit("save_total_limit", a.save_total_limit, at_least(0));
  visit("async_save", a.async_save);
  visit("load_best_model_at_end", a.load_best_model_at_end);
  visit("metric_for_best_model", a.metric_for_best_model);
  visit("greater_is_better", a.greater_is_better);
  visit("ema", a.ema, from_below(0, 1));
  visit("ema_buffers", a.ema_buffers);
  visit("seed", a.seed, at_least(0));
  visit("dataloader_num_workers", a.dataloader_num_workers, at_least(0));
  visit("dataloader_drop_last", a.dataloader_drop_last);
  visit("group_by_length", a.group_by_length);
  visit("disable_tqdm", a.disable_tqdm);
  visit("stop_on_signals", a.stop_on_signals);
  visit("check_replicas", a.check_replicas, at_least(0));
  visit("evict_stragglers", a.evict_stragglers);
  visit("trace_steps", a.trace_steps);
  visit("trace_operators", a.trace_operators);
  visit("nvtx", a.nvtx);
  visit("metrics_port", a.metrics_port, between(0, 65535));
  visit("resume_from_checkpoint", a.resume_from_checkpoint);
};

// Keys of transformers' TrainingArguments (5.24, and those that were there before) that change
// nothing here, whatever they say: where logs, models and metrics go besides, what a device, a
// loader or a wrapper does for speed, and what scripts alone look at.
constexpr std::string_view kWithoutEffect =
    "_n_gpu average_tokens_across_devices batch_eval_metrics dataloader_persistent_workers "
    "dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers "
    "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout dispatch_batches "
    "distributed_state do_eval do_predict do_train enable_jit_checkpoint "
    "eval_accumulation_steps eval_do_concat_batches eval_use_gather_object fp16_backend "
    "fp16_opt_level fsdp_config fsdp_min_num_params fsdp_plugin_args "
    "fsdp_transformer_layer_cls_to_wrap full_determinism gradient_checkpointing_kwargs "
    "half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision "
    "hub_strategy hub_token include_for_metrics include_inputs_for_metrics "
    "include_num_input_tokens_seen include_tokens_per_second jit_mode_eval label_names "
    "length_column_name liger_kernel_config local_rank log_level log_level_replica "
    "log_on_each_node logging_dir logging_first_step logging_nan_inf_filter mixed_precision "
    "mp_parameters no_cuda overwrite_output_dir past_index prediction_loss_only project "
    "push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope "
    "remove_unused_columns report_to restore_callback_states_from_checkpoint run_name "
    "save_on_each_node save_only_model save_safetensors skip_memory_metrics tf32 "
    "torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps "
    "torchdynamo tpu_metrics_debug tpu_num_cores trackio_space_id use_cache use_cpu use_ipex "
    "use_legacy_prediction_loop use_liger_kernel use_mps_device";

// Those that would change a run, and of which the value that does not is taken alone: one of these,
// or what says nothing (null, false, 0, "", an empty list or object).
struct Fixed {
  std::string_view key;
  std::vector<std::string_view> values = {};
};
const std::vector<Fixed>& fixed_keys() {
  static const std::vector<Fixed> keys{
      {"auto_find_batch_size"},
      {"bf16_full_eval"},
      {"data_seed"},
      {"debug"},
      {"deepspeed"},
      {"eval_delay"},
      {"eval_on_start"},
      {"fp16_full_eval"},
      {"fsdp"},
      {"gradient_checkpointing"},
      {"ignore_data_skip"},
      {"label_smoothing_factor"},
      {"logging_strategy", {"steps"}},
      {"lr_scheduler_kwargs"},
      {"neftune_noise_alpha"},
      {"optim", {"adamw_torch", "adamw_torch_fused", "adamw_hf"}},
      {"optim_args"},
      {"optim_target_modules"},
      {"parallelism_config"},
      {"per_gpu_eval_batch_size"},
      {"per_gpu_train_batch_size"},
      {"push_to_hub"},
      {"split_batches"},
      {"train_sampling_strategy", {"random"}},
  };
  return keys;
}

bool says_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) ||
         ((value.is_string() || value.is_structured()) && value.empty()) || value == "";
}

// Takes the keys that are transformers' alone out of `object`. Throws InvalidArgument for what
// would be another run.
void read_over(nlohmann::json& object, const std::string& source) {
  const auto refuse = [&](std::string_view key, const nlohmann::json& value,
                          const std::string& takes) {
    settings::refuse(source + ": " + std::string(key), shown(value),
                     takes + ", which is all that is known here, or leave it out");
  };
  std::istringstream without_effect{std::string(kWithoutEffect)};
  for (std::string key; without_effect >> key;) object.erase(key);
  for (const Fixed& fixed : fixed_keys()) {
    const auto found = object.find(std::string(fixed.key));
    if (found == object.end()) continue;
    const bool taken = std::any_of(fixed.values.begin(), fixed.values.end(),
                                   [&](std::string_view value) { return *found == value; });
    if (!taken && !says_nothing(*found))
      refuse(fixed.key, *found, fixed.values.empty() ? "null" : joined(fixed.values, " or "));
    object.erase(found);
  }
  const auto accelerator = object.find("accelerator_config");
  if (accelerator == object.end()) return;
  if (accelerator->is_object() &&
      !says_nothing(accelerator->value("split_batches", nlohmann::json())))
    refuse("accelerator_config.split_batches", (*accelerator)["split_batches"], "false");
  object.erase(accelerator);
}

// What transformers calls otherwise, under the names here. A share of all steps as warmup_steps is
// its newer way to say warmup_ratio.
void rename_keys(nlohmann::json& object) {
  if (object.contains("evaluation_strategy") && !object.contains("eval_strategy"))
    object["eval_strategy"] = object["evaluation_strategy"];
  object.erase("evaluation_strategy");
  if (object.value("train_sampling_strategy", nlohmann::json()) == "group_by_length") {
    object["group_by_length"] = true;
    object.erase("train_sampling_strategy");
  }
  const nlohmann::json steps = object.value("warmup_steps", nlohmann::json());
  if (steps.is_number_float() && steps > 0 && steps < 1) {
    object["warmup_ratio"] = steps;
    object.erase("warmup_steps");
  }
}

// Null is transformers' default of these, and the value of TrainingArguments() here.
void fill_nulls(nlohmann::json& object) {
  const auto defaults = nlohmann::json::parse(to_json(TrainingArguments()));
  for (const char* key : {"disable_tqdm", "metric_for_best_model", "output_dir",
                          "resume_from_checkpoint", "save_total_limit", "warmup_ratio"}) {
    const auto found = object.find(key);
    if (found != object.end() && found->is_null()) *found = defaults.at(key);
  }
}

void check_strategies(const TrainingArguments& a) {
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
  if (a.output_dir.empty()) settings::refuse("output_dir", "", "a directory");
  settings::check_members(a, kArguments);
  if (a.bf16 && a.fp16) throw InvalidArgument("bf16 and fp16 are both on; choose one");
  if (a.evict_stragglers != 0)
    settings::check_value("evict_stragglers", a.evict_stragglers, settings::at_least(1.01));
  check_ema(a.ema, a.ema_buffers);
  check_trace(a.trace_steps, a.trace_operators, a.nvtx);
  if (a.metric_for_best_model.empty())
    settings::refuse("metric_for_best_model", "", "a metric's name");
  check_strategies(a);
}

std::string to_json(const TrainingArguments& arguments) {
  return settings::to_json(arguments, kArguments);
}

TrainingArguments training_arguments_from_json(std::string_view text, const std::string& source,
                                               TrainingArguments base) {
  nlohmann::json object = settings::parse_object(text, source);
  rename_keys(object);
  read_over(object, source);
  fill_nulls(object);
  settings::read_members(object, source, base, kArguments);
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

}  // namespace lockstep::inline v0
