// TrainingArguments: what Trainer is told, under the names of transformers' TrainingArguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// The defaults are transformers'. A device is a rank.
struct TrainingArguments {
  // Checkpoints: output_dir/checkpoint-<step>. A former run's are moved to output_dir/previous.
  std::string output_dir = "trainer_output";

  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;  // batches of a rank that make one optimizer step
  double num_train_epochs = 3;              // may end within an epoch
  int64_t max_steps = -1;                   // optimizer steps in all; above 0: instead of epochs

  double learning_rate = 5e-5;
  double weight_decay = 0;  // of all but biases and norms
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;  // clip to this global norm; 0: do not
  // "linear", "cosine", "constant", "constant_with_warmup".
  std::string lr_scheduler_type = "linear";
  double warmup_ratio = 0;   // of all steps
  int64_t warmup_steps = 0;  // above 0: instead of the ratio

  bool bf16 = false;  // forward and loss under autocast in bfloat16
  bool fp16 = false;  // the same in float16, with a GradScaler

  int64_t logging_steps = 500;
  std::string eval_strategy = "no";        // "no", "steps", "epoch"
  std::optional<int64_t> eval_steps = {};  // absent: logging_steps
  std::string save_strategy = "steps";     // "no", "steps", "epoch", "best"
  int64_t save_steps = 500;
  int64_t save_total_limit = 0;  // how many checkpoints to keep, the best among them; 0: all
  bool async_save = false;  // training goes on while a checkpoint is written, of a copy in memory
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";  // a metric's name, with or without "eval_"
  std::optional<bool> greater_is_better = {};  // absent: unless the name ends in "loss"

  int64_t seed = 42;  // of shuffling and dropout; the model is drawn by who makes it
  int64_t dataloader_num_workers = 0;  // threads of a rank that make batches; 0: the loop itself
  bool dataloader_drop_last = false;
  bool group_by_length = false;  // batches of similar lengths (LengthGroupedSampler)
  bool disable_tqdm = false;     // no progress bar
  // SIGTERM and SIGUSR1 to any rank end training at a step boundary, with a checkpoint (stop_signals.h).
  bool stop_on_signals = true;
  // After so many steps, each time, all ranks' parameters are compared (replica_check.h); 0: never. Not in transformers.
  int64_t check_replicas = 0;
  // A rank that stays so many times slower than the others ends itself, for the launcher to start it anew
  // (straggler.h); 0: none does. Not in transformers.
  double evict_stragglers = 0;
  std::string resume_from_checkpoint =
      {};  // "": start anew; "true": the latest of output_dir; a path

  bool operator==(const TrainingArguments&) const = default;
};

// Throws InvalidArgument that names the first argument that makes no sense, alone or with another.
void check(const TrainingArguments& arguments);

// JSON of all arguments by name; reading takes those that are absent from `base`. What transformers writes
// (TrainingArguments.to_json_string(), 5.24) is read: its keys that change nothing here are read over, and those
// that would change a run are, where they say that they do not. Throws InvalidArgument of one line that begins
// with `source`: unknown names (all of them, with the nearest ones), a value of another type or of a key that
// is not known here, and what check() throws.
std::string to_json(const TrainingArguments& arguments);
TrainingArguments training_arguments_from_json(std::string_view text, const std::string& source,
                                               TrainingArguments base = {});

// Whether the metric that chooses the best model is to be great, and its name with "eval_".
bool best_is_greatest(const TrainingArguments& arguments);
std::string best_metric(const TrainingArguments& arguments);

}  // namespace lockstep
