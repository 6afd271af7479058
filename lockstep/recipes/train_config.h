// TrainConfig: the settings of `lockstep train RECIPE`, as a value with JSON. spec_of() makes the
// TrainSpec (train/train_spec.h) that is trained by.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

class Strategy;
struct TrainSpec;
struct Parallelism;

// The defaults are those of tutorial 000; default_config() has each recipe's. resolved() refuses
// other values of fields that a recipe does not have.
struct TrainConfig {
  std::string recipe = "mnist";
  std::string data;  // directory or file, as the recipe takes it
  std::string output = "runs/mnist";
  int64_t nproc = 1;             // ranks
  std::string backend;           // "": chosen by init()
  std::string device;            // InitOptions::device
  std::string strategy = "ddp";  // make_strategy()'s
  // The next three are DiLoCoOptions', for strategy diloco only.
  int64_t diloco_steps = 500;
  double diloco_lr = 0.7;
  double diloco_momentum = 0.9;
  // Axes data and shard, in the form of parse_axes(); "": one copy of the parameters for each host
  // under zero3 and fsdp. Language also has data, pipe, context, expert and tensor (Parallelism);
  // the strategy is then ddp, or zero1 to zero3 over the ranks that average gradients. nproc 1
  // becomes the product of their sizes.
  std::string mesh;
  // The next three are Parallelism's, for language on such a mesh only.
  std::string pipe_schedule = "1f1b";
  int64_t micro_batches = 0;
  bool divided_rows = false;
  // "distributed": a new deal every epoch; "partition": the tutorial's fixed parts.
  std::string sampler = "distributed";
  // Images: image_model_names(), cifar only. Texts: "mini", "base", or a directory in Hugging
  // Face's form. Language: lm_preset_names(), or a directory of transformers' Llama.
  std::string model = "simple-cnn";
  bool sync_batch_norm = false;  // statistics over all ranks' batches; cifar only
  int64_t epochs = 10;
  int64_t batch_size = 0;  // of a rank; 0: 128 / nproc, rounded down; texts 32, windows 12
  // The samples of a step over all ranks, in place of batch_size, which is then the largest rank's;
  // 0: all ranks have batch_size.
  int64_t step_samples = 0;
  double lr = 0.01;  // 0, except for mnist: depends on the model (resolved())
  double momentum = 0.5;
  double weight_decay = 0;            // not of biases and normalisation layers
  std::string schedule = "constant";  // of the learning rate: "constant", "linear", "cosine"
  double warmup = 0;                  // epochs in which the learning rate rises from 0; images only
  bool augment = false;               // random crops and mirroring; cifar only
  std::string amp = "none";           // "bf16": autocast in forward
  int64_t seed = 1234;                // parameters and shuffling; dropout draws from seed + rank
  double dropout1 = 0.25;
  double dropout2 = 0.5;
  double mean = 0.1307;  // of pixels scaled to 0..1; this and stddev: mnist only
  double stddev = 0.3081;
  // The next five are for texts only.
  std::string vocab;                // vocab.txt or tokenizer.json; "": the model's, or the data's
  std::string padding = "longest";  // "max_length", "longest", "packed"
  int64_t max_length = 128;         // tokens of a text
  bool remove_spaces = false;       // out of every text
  double warmup_ratio = 0.1;  // of all steps, in which the learning rate rises from 0; also for lm
  // The next five are for language only, two of them for texts too.
  std::string tokenizer;  // a directory or file, or "characters"; "": the model's, or characters
  int64_t context = 64;   // tokens of a window
  double dropout = 0;     // of the embeddings, and of what each block adds
  bool gradient_checkpointing = false;  // blocks are computed again in backward; also for texts
  bool offload_checkpoints = false;     // their inputs are in pinned memory meanwhile; likewise
  double clip = 1;                      // the gradients' largest global norm; 0: unlimited
  // The decay of an average of the parameters that is evaluated and saved (TrainSpec::ema); 0: none.
  double ema = 0;
  bool ema_buffers = false;  // and of the buffers
  int64_t max_steps = 0;     // optimizer steps in all; 0: no limit
  int64_t log_every = 50;    // steps
  int64_t save_every = 0;    // steps; 0: after each epoch
  bool async_save = false;   // training continues while a checkpoint is written
  // Steps between two comparisons of all ranks' parameters (replica_check.h); 0: none.
  int64_t check_replicas = 0;
  // A rank that stays so many times slower than the others ends, to be started anew (straggler.h);
  // 0: none does.
  double evict_stragglers = 0;
  std::string trace_steps;  // "10:12": a timeline of these steps in output/trace.json; "": none
  bool trace_operators = false;  // with libtorch's operators
  bool nvtx = false;             // steps and calls are NVTX ranges (TimelineOptions::nvtx)
  // A rank serves its metrics on this port plus its local rank (train/prometheus_callback.h); 0:
  // none.
  int64_t metrics_port = 0;
  // A .safetensors or .pt file, or a checkpoint, with the model's first parameters; "": drawn from
  // seed. Images only.
  std::string init_from;
  int64_t workers = 1;   // threads a rank that load data
  double timeout = 600;  // seconds, of every wait for other ranks

  bool operator==(const TrainConfig&) const = default;
};

// A recipe's defaults.
// Throws: InvalidArgument for an unknown recipe.
LOCKSTEP_API TrainConfig default_config(const std::string& recipe);

// The headings of --help, in its order.
inline constexpr const char *kDataGroup = "Data and model", *kTrainingGroup = "Training",
                            *kRanksGroup = "Ranks", *kOutputGroup = "Output";

// A field of a recipe, with its name in JSON ("batch_size") and the texts of --help.
struct ConfigField {
  std::string name;
  std::string help;
  std::string group;     // its heading
  std::string type;      // of its value: "N", "NUMBER", "DIR", "none|bf16"
  std::string fallback;  // the value without the option: the default, or what it stands for
  bool is_switch;        // true or false; given without a value: true
};
// The fields of a recipe, in the order of --help.
LOCKSTEP_API std::vector<ConfigField> config_fields(const std::string& recipe);

// Sets a field from the text of a command line.
// Throws: InvalidArgument that names the field, the text and the values that it takes.
LOCKSTEP_API void set_field(TrainConfig& config, const std::string& name, const std::string& text);

// The settings as config.json has them.
LOCKSTEP_API std::string to_json(const TrainConfig& config);
// Absent fields keep the value of `base`, or the default of the recipe that the JSON names (mnist
// if it names none).
// Throws: InvalidArgument of one line that begins with `source`: for text that is not JSON, an
// unknown key (with the nearest known one), a value of another type, another recipe than base's.
LOCKSTEP_API TrainConfig
train_config_from_json(const std::string& text, const std::string& source,
                       const std::optional<TrainConfig>& base = std::nullopt);

// The configuration with batch_size and lr filled in, and with step_samples 0 if batch_size says
// the same. Pure: reads no file.
// Throws: InvalidArgument that names the first field with an impossible value.
LOCKSTEP_API TrainConfig resolved(const TrainConfig& config);

// The TrainSpec of a resolved configuration.
LOCKSTEP_API TrainSpec spec_of(const TrainConfig& config);

// Checks a resolved configuration against the data.
// Throws: InvalidArgument for more ranks than samples, or than samples of a step with
// sync_batch_norm.
LOCKSTEP_API void check_against_data(const TrainConfig& config, int64_t train_samples,
                                     int64_t test_samples);

// The strategy of a resolved configuration, on its mesh.
LOCKSTEP_API std::shared_ptr<Strategy> strategy_of(const TrainConfig& config);

// Whether each rank trains by itself for some steps (StrategyTraits::trains_apart): diloco.
LOCKSTEP_API bool trains_apart(const TrainConfig& config);
// Whether the mesh divides the model: it has an axis pipe, context, expert or tensor.
LOCKSTEP_API bool divides_model(const TrainConfig& config);
// The parallelism of a resolved configuration whose mesh divides the model.
LOCKSTEP_API Parallelism parallelism_of(const TrainConfig& config);

// The number of batches of batch_size in a step, over all ranks.
LOCKSTEP_API int64_t batches_of_step(const TrainConfig& config);
// The number of samples in a step, over all ranks; 0 if batch_size is not filled in yet.
LOCKSTEP_API int64_t samples_of_step(const TrainConfig& config);
// Whether ranks may have unequal numbers of samples: not with logical ranks, a divided model, or
// fixed parts.
LOCKSTEP_API bool shares_unequally(const TrainConfig& config);

// The number of steps in an epoch of so many samples, by a resolved configuration.
LOCKSTEP_API int64_t steps_per_epoch(const TrainConfig& config, int64_t samples);

// Checks that a run may be resumed with other settings than it was begun with. Some fields may
// differ: max_steps, output, log_every, ..., epochs if the schedule is constant, and those of diloco
// unless it is the strategy of both.
// Throws: InvalidArgument that lists the fields which would change its course.
LOCKSTEP_API void check_resumable(const TrainConfig& recorded, const TrainConfig& now);

}  // namespace lockstep::inline v0
