// TrainingArguments: the settings of Trainer, with the names of transformers' TrainingArguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The defaults are transformers'. A device is a rank.
struct TrainingArguments {
  // Checkpoints are output_dir/checkpoint-<step>. Those of a former run move to
  // output_dir/previous.
  std::string output_dir = "trainer_output";

  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;  // batches of a rank that make one optimizer step
  double num_train_epochs = 3;              // may end within an epoch
  int64_t max_steps = -1;                   // optimizer steps in all; above 0: instead of epochs

  double learning_rate = 5e-5;
  double weight_decay = 0;  // not of biases and norms
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;  // clip to this global norm; 0: do not
  // "linear", "cosine", "constant", "constant_with_warmup".
  std::string lr_scheduler_type = "linear";
  double warmup_ratio = 0;   // of all steps
  int64_t warmup_steps = 0;  // above 0: replaces the ratio

  bool bf16 = false;  // forward and loss compute under autocast in bfloat16
  bool fp16 = false;  // the same in float16, with a GradScaler

  int64_t logging_steps = 500;
  std::string eval_strategy = "no";        // "no", "steps", "epoch"
  std::optional<int64_t> eval_steps = {};  // absent: logging_steps
  std::string save_strategy = "steps";     // "no", "steps", "epoch", "best"
  int64_t save_steps = 500;
  int64_t save_total_limit = 0;  // checkpoints to keep, the best among them; 0: all
  bool async_save = false;       // training continues while a copy in memory is written
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";  // a metric's name, with or without "eval_"
  std::optional<bool> greater_is_better = {};  // absent: true unless the name ends in "loss"

  // The decay of a moving average of the parameters (optim/exponential_average.h), with a warm-up,
  // that is evaluated and saved as the model; 0: none. And whether buffers, such as BatchNorm's
  // running statistics, are averaged as well. Not in transformers.
  double ema = 0;
  bool ema_buffers = false;

  int64_t seed = 42;                   // of shuffling; the caller seeds the model and dropout
  int64_t dataloader_num_workers = 0;  // threads of a rank for batches; 0: the loop makes them
  bool dataloader_drop_last = false;
  bool group_by_length = false;  // batches of similar lengths (LengthGroupedSampler)
  bool disable_tqdm = false;     // no progress bar
  // SIGTERM or SIGUSR1 to any rank ends training at a step boundary, with a checkpoint
  // (stop_signals.h).
  bool stop_on_signals = true;
  // All ranks' parameters are compared every so many steps (replica_check.h); 0: never. Not in
  // transformers.
  int64_t check_replicas = 0;
  // A rank that stays so many times slower than the others ends itself, so that the launcher starts
  // it anew (straggler.h); 0: none does. Not in transformers.
  double evict_stragglers = 0;
  // "10:12": a timeline of these steps, of all ranks, in output_dir/trace.json (timeline.h); "":
  // none. Not in transformers.
  std::string trace_steps = {};
  bool trace_operators = false;  // with libtorch's operators. Not in transformers
  // The parts of all steps and the communicators' calls are NVTX ranges, for Nsight Systems; needs a
  // libtorch with CUDA. Not in transformers.
  bool nvtx = false;
  // A rank serves its metrics on this port of the loopback interface plus its local rank
  // (prometheus_callback.h); 0: no rank does. Not in transformers.
  int64_t metrics_port = 0;
  std::string resume_from_checkpoint =
      {};  // "": start anew; "true": the latest of output_dir; a path

  bool operator==(const TrainingArguments&) const = default;
};

// Throws: InvalidArgument that names the first argument that is impossible, alone or with another.
LOCKSTEP_API void check(const TrainingArguments& arguments);

// JSON of all arguments by name. Reading takes absent ones from `base`. It also reads the JSON of
// transformers (TrainingArguments.to_json_string(), 5.24): keys without an effect here are ignored,
// and keys that would change a run are accepted only with the value that changes nothing.
// Throws: InvalidArgument of one line that begins with `source`, for unknown names (all of them,
// with the nearest ones), a value of another type, a value that is not supported, and as check().
LOCKSTEP_API std::string to_json(const TrainingArguments& arguments);
LOCKSTEP_API TrainingArguments training_arguments_from_json(std::string_view text,
                                                            const std::string& source,
                                                            TrainingArguments base = {});

// Whether a greater value of the best model's metric is better, and its name with "eval_".
LOCKSTEP_API bool best_is_greatest(const TrainingArguments& arguments);
LOCKSTEP_API std::string best_metric(const TrainingArguments& arguments);

}  // namespace lockstep::inline v0
