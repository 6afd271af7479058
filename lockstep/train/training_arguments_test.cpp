#include "lockstep/train/training_arguments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::training_arguments_test {
namespace {

// As transformers 5.24 writes TrainingArguments("out", report_to=[]).to_json_string() on a machine
// without a GPU.
constexpr const char* kTransformers = R"({
  "output_dir": "out", "per_device_train_batch_size": 8, "num_train_epochs": 3.0, "max_steps": -1,
  "learning_rate": 5e-05, "lr_scheduler_type": "linear", "lr_scheduler_kwargs": null, "warmup_steps": 0,
  "optim": "adamw_torch_fused", "optim_args": null, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
  "adam_epsilon": 1e-08, "optim_target_modules": null, "gradient_accumulation_steps": 1,
  "average_tokens_across_devices": true, "max_grad_norm": 1.0, "label_smoothing_factor": 0.0, "bf16": false,
  "fp16": false, "bf16_full_eval": false, "fp16_full_eval": false, "tf32": null, "gradient_checkpointing": false,
  "gradient_checkpointing_kwargs": null, "torch_compile": false, "torch_compile_backend": null,
  "torch_compile_mode": null, "use_liger_kernel": false, "liger_kernel_config": null, "use_cache": false,
  "neftune_noise_alpha": null, "torch_empty_cache_steps": null, "auto_find_batch_size": false,
  "logging_strategy": "steps", "logging_steps": 500, "logging_first_step": false, "log_on_each_node": true,
  "logging_nan_inf_filter": true, "include_num_input_tokens_seen": "no", "log_level": "passive",
  "log_level_replica": "warning", "disable_tqdm": false, "report_to": [], "run_name": null,
  "project": "huggingface", "trackio_space_id": "trackio", "eval_strategy": "no", "eval_steps": null,
  "eval_delay": 0, "per_device_eval_batch_size": 8, "prediction_loss_only": false, "eval_on_start": false,
  "eval_do_concat_batches": true, "eval_use_gather_object": false, "eval_accumulation_steps": null,
  "include_for_metrics": [], "batch_eval_metrics": false, "save_only_model": false, "save_strategy": "steps",
  "save_steps": 500, "save_on_each_node": false, "save_total_limit": null, "enable_jit_checkpoint": false,
  "push_to_hub": false, "hub_token": "<HUB_TOKEN>", "hub_private_repo": null, "hub_model_id": null,
  "hub_strategy": "every_save", "hub_always_push": false, "hub_revision": null, "load_best_model_at_end": false,
  "metric_for_best_model": null, "greater_is_better": null, "ignore_data_skip": false,
  "restore_callback_states_from_checkpoint": false, "full_determinism": false, "seed": 42, "data_seed": null,
  "use_cpu": true, "accelerator_config": {"split_batches": false, "dispatch_batches": null, "even_batches": true,
  "use_seedable_sampler": true, "non_blocking": false, "gradient_accumulation_kwargs": null},
  "parallelism_config": null, "dataloader_drop_last": false, "dataloader_num_workers": 0,
  "dataloader_pin_memory": false, "dataloader_persistent_workers": false, "dataloader_prefetch_factor": null,
  "remove_unused_columns": true, "label_names": null, "train_sampling_strategy": "random",
  "length_column_name": "length", "ddp_find_unused_parameters": null, "ddp_bucket_cap_mb": null,
  "ddp_broadcast_buffers": null, "ddp_backend": null, "ddp_timeout": 1800, "fsdp": [],
  "fsdp_config": {"min_num_params": 0, "xla": false, "xla_fsdp_v2": false, "xla_fsdp_grad_ckpt": false},
  "deepspeed": null, "debug": [], "skip_memory_metrics": true, "do_train": false, "do_eval": false,
  "do_predict": false, "resume_from_checkpoint": null, "warmup_ratio": null, "logging_dir": null,
  "local_rank": -1})";

TEST(TrainingArguments, WhatTransformersWritesIsRead) {
  TrainingArguments expected;
  expected.output_dir = "out";
  EXPECT_EQ(training_arguments_from_json(kTransformers, "args.json"), expected);
  // Null is the default, whatever `base` had.
  TrainingArguments base;
  base.save_total_limit = 3;
  base.resume_from_checkpoint = "true";
  EXPECT_EQ(
      training_arguments_from_json(
          R"({"output_dir": "out", "save_total_limit": null, "resume_from_checkpoint": null})",
          "args.json", base),
      expected);
  expected.group_by_length = true;
  expected.eval_strategy = "epoch";
  expected.warmup_ratio = 0.1;
  EXPECT_EQ(training_arguments_from_json(
                R"({"output_dir": "out", "train_sampling_strategy": "group_by_length",
                    "evaluation_strategy": "epoch", "_n_gpu": 1, "warmup_steps": 0.1, "warmup_ratio": 0.1})",
                "args.json"),
            expected);
}

TEST(TrainingArguments, AnArgumentSaysWhatItTakes) {
  const auto refused = [](const TrainingArguments& args) {
    return message_of<InvalidArgument>([&] { check(args); });
  };
  EXPECT_EQ(refused({.per_device_train_batch_size = 0}),
            "per_device_train_batch_size is 0; give 1 or more");
  EXPECT_EQ(refused({.adam_beta1 = 1}), "adam_beta1 is 1.0; give 0 or more, and less than 1");
  EXPECT_EQ(refused({.learning_rate = HUGE_VAL}), "learning_rate is inf; give 0 or more");
  EXPECT_EQ(refused({.lr_scheduler_type = "step"}),
            "lr_scheduler_type is 'step'; give linear, cosine, constant or constant_with_warmup");
  EXPECT_EQ(refused({.eval_steps = 0}), "eval_steps is 0; give 1 or more");
  EXPECT_EQ(refused({.evict_stragglers = 1}), "evict_stragglers is 1.0; give 1.01 or more");
}

// Keys that would change a run are no more read over than ever.
TEST(TrainingArguments, WhatWouldBeAnotherRunIsRefused) {
  const auto refused = [](const std::string& json) {
    return message_of<InvalidArgument>([&] { training_arguments_from_json(json, "args.json"); });
  };
  EXPECT_EQ(refused(R"({"label_smoothing_factor": 0.1})"),
            "args.json: label_smoothing_factor is 0.1; give null, which is all that is known here, "
            "or leave "
            "it out");
  EXPECT_EQ(refused(R"({"optim": "adafactor"})"),
            "args.json: optim is \"adafactor\"; give adamw_torch or adamw_torch_fused or adamw_hf, "
            "which is "
            "all that is known here, or leave it out");
  EXPECT_NE(refused(R"({"accelerator_config": {"split_batches": true}})")
                .find("accelerator_config.split_batches is true; give false"),
            std::string::npos);
  for (const char* key : {"gradient_checkpointing", "ignore_data_skip", "eval_on_start"})
    EXPECT_NE(refused("{\"" + std::string(key) + "\": true}").find(std::string(key) + " is true"),
              std::string::npos);
  EXPECT_EQ(
      refused(R"({"learning_rat": 1, "another": 2, "seeed": 3})"),
      "args.json: unknown keys 'another', 'learning_rat' (did you mean 'learning_rate'?), 'seeed' "
      "(did you mean 'seed'?)");
}

}  // namespace
}  // namespace lockstep::inline v0::training_arguments_test
