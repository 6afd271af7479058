// TrainConfig: everything that decides what `lockstep train RECIPE` does, as a value with JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Strategy;
struct TrainSpec;
struct LmParallelism;

// The defaults are those of tutorial 000; default_config() has each recipe's. A field that is for
// some recipes only keeps its default in the others.
struct TrainConfig {
  std::string recipe = "mnist";
  std::string data;  // directory or file, as the recipe takes it
  std::string output = "runs/mnist";
  int64_t nproc = 1;             // ranks
  std::string backend;           // "": chosen by init()
  std::string device;            // InitOptions::device
  std::string strategy = "ddp";  // strategy_names()
  // Axes data and shard, as parse_axes() takes them; "": one copy of the parameters a host under zero3 and
  // fsdp. Language also: data, pipe, context, expert and tensor (LmParallelism); then the strategy is ddp, or zero1 to
  // zero3 over the ranks that average gradients. nproc 1 becomes the product of their sizes.
  std::string mesh;
  // The next three: language on such a mesh only. LmParallelism's.
  std::string pipe_schedule = "1f1b";
  int64_t micro_batches = 0;
  bool divided_rows = false;
  // "distributed": a new deal every epoch; "partition": the tutorial's fixed parts.
  std::string sampler = "distributed";
  // Images: image_model_names(), cifar only. Texts: "mini", "base", or a directory of Hugging Face's
  // form. Language: lm_preset_names(), or a directory of transformers' Llama.
  std::string model = "simple-cnn";
  bool sync_batch_norm = false;  // statistics over all ranks' batches; cifar only
  int64_t epochs = 10;
  int64_t batch_size = 0;  // a rank; 0: 128 / nproc, rounded down; texts 32, windows 12
  // A step's, over all ranks, in place of batch_size, which then is the largest a rank has; 0: all have batch_size.
  int64_t step_samples = 0;
  double lr = 0.01;  // 0, but not of mnist: by the model (resolved())
  double momentum = 0.5;
  double weight_decay = 0;            // of all but biases and normalisation layers
  std::string schedule = "constant";  // of the learning rate: "constant", "linear", "cosine"
  double warmup = 0;                  // epochs in which the learning rate rises from 0; images only
  bool augment = false;               // random crops and mirroring; cifar only
  std::string amp = "none";           // "bf16": autocast in forward
  int64_t seed = 1234;                // parameters and shuffling; dropout draws from seed + rank
  double dropout1 = 0.25;
  double dropout2 = 0.5;
  double mean = 0.1307;  // of pixels scaled to 0..1; this and stddev: mnist only
  double stddev = 0.3081;
  // The next five: texts only.
  std::string vocab;                // vocab.txt or tokenizer.json; "": the model's, or the data's
  std::string padding = "longest";  // "max_length", "longest", "packed"
  int64_t max_length = 128;         // tokens of a text
  bool remove_spaces = false;       // out of every text
  double warmup_ratio = 0.1;  // of all steps, in which the learning rate rises from 0; lm's too
  // The next five: language only.
  std::string tokenizer;  // a directory or file, or "characters"; "": the model's, or characters
  int64_t context = 64;   // tokens of a window
  double dropout = 0;     // of the embeddings, and of what each block adds
  bool gradient_checkpointing = false;  // blocks are computed again in backward
  bool offload_checkpoints = false;     // and what they keep is in pinned memory meanwhile
  double clip = 1;                      // the gradients' global norm; 0: as they are
  int64_t max_steps = 0;                // optimizer steps in all; 0: no limit
  int64_t log_every = 50;               // steps
  int64_t save_every = 0;               // steps; 0: after each epoch
  bool async_save = false;              // training goes on while a checkpoint is written
  // Steps from one comparison of all ranks' parameters to the next (replica_check.h); 0: none.
  int64_t check_replicas = 0;
  // A rank that stays so many times slower than the others ends, to be started anew (straggler.h); 0: none does.
  double evict_stragglers = 0;
  // A .safetensors or .pt file, or a checkpoint, with the model's parameters to start from; "": drawn
  // from seed. Images only.
  std::string init_from;
  int64_t workers = 1;   // threads a rank that load data
  double timeout = 600;  // seconds, of every wait for other ranks

  bool operator==(const TrainConfig&) const = default;
};

// A recipe's defaults. Throws InvalidArgument for an unknown one.
TrainConfig default_config(const std::string& recipe);

// The headings of --help, in its order.
inline constexpr const char *kDataGroup = "Data and model", *kTrainingGroup = "Training",
                            *kRanksGroup = "Ranks", *kOutputGroup = "Output";

// The names of a recipe's fields in order, as in JSON ("batch_size"). What each is, as one line for
// --help.
struct ConfigField {
  std::string name;
  std::string help;
  std::string group;     // the heading that it stands under
  std::string type;      // what it takes: "N", "NUMBER", "DIR", "none|bf16"
  std::string fallback;  // what is taken where nothing is given: the default, or what it stands for
  bool is_switch;        // true or false; given without a value: true
};
std::vector<ConfigField> config_fields(const std::string& recipe);

// Sets one field from text, as a command line gives it. Throws InvalidArgument that names the
// field, the text and what it takes.
void set_field(TrainConfig& config, const std::string& name, const std::string& text);

std::string to_json(const TrainConfig& config);
// Fields that are absent keep their value of `base`, or the default of the recipe that the JSON
// names (mnist where it names none). Throws InvalidArgument of one line that begins with `source`:
// not JSON, an unknown key (with the nearest known one), a value of another type, another recipe
// than base's.
TrainConfig train_config_from_json(const std::string& text, const std::string& source,
                                   const std::optional<TrainConfig>& base = std::nullopt);

// The configuration with batch_size and lr filled in, and step_samples 0 where batch_size says it. Throws InvalidArgument that names the first
// field that makes no sense. Pure: looks at no file.
TrainConfig resolved(const TrainConfig& config);

// What a resolved configuration trains, as Trainer's runs are said.
TrainSpec spec_of(const TrainConfig& config);

// Checks a resolved configuration against the data. Throws InvalidArgument: more ranks than
// samples, or than those of a step with sync_batch_norm.
void check_against_data(const TrainConfig& config, int64_t train_samples, int64_t test_samples);

// The strategy that a resolved configuration names, on its mesh.
std::shared_ptr<Strategy> strategy_of(const TrainConfig& config);

// Whether the mesh divides the model: it has an axis pipe, context, expert or tensor.
bool divides_model(const TrainConfig& config);
// Of a resolved configuration whose mesh does.
LmParallelism parallelism_of(const TrainConfig& config);

// How many batches of batch_size a step has, over all ranks.
int64_t batches_of_step(const TrainConfig& config);
// How many samples, over all ranks; 0 where batch_size is still to be filled in.
int64_t samples_of_step(const TrainConfig& config);
// Whether ranks may have unequal numbers of them: not logical ranks, nor those that divide the model, nor fixed parts.
bool shares_unequally(const TrainConfig& config);

// How many steps an epoch of so many samples has, by a resolved configuration.
int64_t steps_per_epoch(const TrainConfig& config, int64_t samples);

// A resumed run goes on with the settings that it was begun with. Throws InvalidArgument that lists
// the fields that would change its course; others (max_steps, output, log_every, ..., and epochs
// where the schedule is constant) may differ.
void check_resumable(const TrainConfig& recorded, const TrainConfig& now);

}  // namespace lockstep
