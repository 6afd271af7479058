#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/mesh/mesh_layout.h"
#include "lockstep/mesh/shared_copies.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/image_model.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/products/parallelism.h"
#include "lockstep/recipes/config_fields.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"
#include "lockstep/train/settings.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {
namespace {

using namespace settings;

constexpr double kPretrainedRate = 3e-5;

std::string number_text(double value) {
  return nlohmann::json(value).dump();
}

// Of a mesh that divides the model: what can be said before the data are read, of a model whose
// vocabulary is.
void resolve_divided(TrainConfig& config) {
  if (recipe_of(config.recipe).kind != RecipeKind::kLanguage)
    refuse("mesh", "'" + config.mesh + "'", "axes data and shard: lm alone has models that divide");
  if (config.strategy == "zero") config.strategy = "zero1";
  check_value("strategy", config.strategy, one_of("ddp|zero1|zero2|zero3"));
  const Parallelism how = parse_parallelism(config.mesh);
  if (config.nproc == 1) {
    for (const MeshAxis& axis : how.axes) config.nproc *= std::max(axis.size, 1);
  }
  LmConfig model;
  const auto& presets = lm_preset_names();
  if (std::find(presets.begin(), presets.end(), config.model) != presets.end()) {
    model = lm_preset(config.model);
    model.hidden_dropout = config.dropout;
    check(parallelism_of(config), model, static_cast<int>(config.nproc));
  } else {
    (void)MeshLayout(how.axes, static_cast<int>(config.nproc));  // throws
  }
}

// batch_size of step_samples: all ranks' where they share them equally, else the largest.
void resolve_step(TrainConfig& config) {
  if (config.step_samples == 0) return;
  const int64_t ranks = batches_of_step(config);
  const StepShares shares = shares_of_step(config.step_samples, ranks);
  config.batch_size = shares.largest;
  config.step_samples = shares.step_samples;
  if (config.step_samples > 0 && !shares_unequally(config))
    refuse("step_samples", std::to_string(config.step_samples),
           "a multiple of " + std::to_string(ranks) +
               ": logical ranks, ranks along a mesh that divides the model, and those of sampler "
               "partition have equal batches");
}

// Axes that recipes have, and ranks for them.
void resolve_mesh(TrainConfig& config) {
  if (divides_model(config)) {
    resolve_divided(config);
    return;
  }
  const std::string divided = "it with pipe or tensor in the mesh, such as pipe=2,tensor=2";
  if (config.pipe_schedule != "1f1b")
    refuse("pipe_schedule", "'" + config.pipe_schedule + "'", divided);
  if (config.micro_batches != 0)
    refuse("micro_batches", std::to_string(config.micro_batches), divided);
  if (config.divided_rows) refuse("divided_rows", "true", divided);
  if (config.mesh.empty()) return;
  if (recipe_of(config.recipe).kind == RecipeKind::kLanguage) {
    for (const MeshAxis& axis : parse_axes(config.mesh)) {
      if (axis.name != "data" && axis.name != "shard")
        refuse("mesh", "'" + config.mesh + "'",
               "axes named data and shard, or data, pipe, context, expert and tensor");
    }
  }
  if (config.nproc == 1) config.nproc = ranks_of(config.mesh);
  (void)shared_copies(config.mesh, static_cast<int>(config.nproc));  // throws
  if (divides_parameters(config.strategy)) return;
  const MeshLayout layout(parse_axes(config.mesh), static_cast<int>(config.nproc));
  for (const MeshAxis& axis : layout.axes()) {
    if (axis.name == "shard" && axis.size != 1)
      refuse("mesh", "'" + config.mesh + "'",
             "no shard, or strategy zero3 or fsdp: ranks of strategy " + config.strategy +
                 " share no parameters");
  }
}

// What compares, averages or joins the ranks' parameters in each step does not go with ranks that
// train apart.
void resolve_diloco(const TrainConfig& config) {
  const TrainConfig defaults;
  if (!trains_apart(config)) {
    const std::string only = "it with strategy diloco";
    if (config.diloco_steps != defaults.diloco_steps)
      refuse("diloco_steps", std::to_string(config.diloco_steps), only);
    if (config.diloco_lr != defaults.diloco_lr)
      refuse("diloco_lr", number_text(config.diloco_lr), only);
    if (config.diloco_momentum != defaults.diloco_momentum)
      refuse("diloco_momentum", number_text(config.diloco_momentum), only);
    return;
  }
  const std::string apart =
      " with strategy " + config.strategy + ", whose ranks train apart between two outer steps";
  if (config.ema > 0) refuse("ema", number_text(config.ema), "0" + apart);
  if (config.check_replicas > 0)
    refuse("check_replicas", std::to_string(config.check_replicas), "0" + apart);
  if (config.sync_batch_norm) refuse("sync_batch_norm", "true", "false" + apart);
}

void resolve_images(TrainConfig& config) {
  constexpr int64_t kTutorialBatch = 128;
  constexpr double kResNetRate = 0.1, kSimpleCnnRate = 0.02;  // with BatchNorm, and without
  if (config.warmup > static_cast<double>(config.epochs))
    refuse("warmup", number_text(config.warmup),
           "0 to " + std::to_string(config.epochs) + " epochs");
  if (config.sync_batch_norm && config.model == "simple-cnn")
    refuse("sync_batch_norm", "true", "false: simple-cnn has no BatchNorm");
  if (config.lr == 0 && config.recipe == "cifar")
    config.lr = config.model == "simple-cnn" ? kSimpleCnnRate : kResNetRate;
  if (config.batch_size == 0) config.batch_size = kTutorialBatch / batches_of_step(config);
  if (config.batch_size == 0) {
    throw InvalidArgument((batches_of_step(config) == config.nproc
                               ? "nproc is " + std::to_string(config.nproc)
                               : "strategy is " + config.strategy) +
                          ", which leaves nothing of the default batch of 128; give batch_size");
  }
}

void resolve_texts(TrainConfig& config) {
  constexpr double kDrawnRate = 5e-4;
  constexpr int64_t kBatch = 32;
  const auto& presets = bert_preset_names();
  const bool is_preset = std::find(presets.begin(), presets.end(), config.model) != presets.end();
  if (config.lr == 0) config.lr = is_preset ? kDrawnRate : kPretrainedRate;
  if (config.batch_size == 0) config.batch_size = kBatch;
}

void resolve_language(TrainConfig& config) {
  constexpr double kTinyRate = 3e-3, kMiniRate = 1e-3, kSmallRate = 6e-4;
  constexpr int64_t kBatch = 12;
  const auto& presets = lm_preset_names();
  const bool is_preset = std::find(presets.begin(), presets.end(), config.model) != presets.end();
  if (config.lr == 0)
    config.lr = !is_preset                ? kPretrainedRate
                : config.model == "small" ? kSmallRate
                : config.model == "mini"  ? kMiniRate
                                          : kTinyRate;
  if (config.batch_size == 0) config.batch_size = kBatch;
}

// What can be said before it is known which devices there are.
void resolve_device(const TrainConfig& config) {
  const bool cuda = config.device == "cuda" || config.device.starts_with("cuda:");
  if (!cuda && !config.device.empty() && config.device != "cpu" && config.device != "auto")
    refuse("device", "'" + config.device + "'", "cpu, cuda, cuda:N or auto");
  const bool of_devices = config.backend == "nccl" || config.backend == "peer";
  if (of_devices && config.device == "cpu")
    refuse("backend", "'" + config.backend + "'", "another where the device is the CPU");
  // Ranks that share a copy divide its layers there.
  if ((cuda || of_devices) && divides_parameters(config.strategy) && !config.mesh.empty() &&
      recipe_of(config.recipe).kind == RecipeKind::kImages)
    refuse("mesh", "'" + config.mesh + "'",
           "none on devices, where strategy " + config.strategy +
               " divides a list of layers: models of pictures have none");
}

// A setting that the recipe does not have would be trained by where code reads it, and recorded
// nowhere.
void check_has_settings(const TrainConfig& config) {
  const auto own = names_of(config, internal::kFields);
  for (const Recipe& other : recipes()) {
    TrainConfig given = config, defaults = default_config(config.recipe);
    given.recipe = defaults.recipe = other.name;
    const auto there = nlohmann::json::parse(to_json(given));
    const auto kept = nlohmann::json::parse(to_json(defaults));
    for (const auto& [name, value] : there.items())
      if (std::find(own.begin(), own.end(), name) == own.end() && value != kept.at(name))
        refuse(name, shown(value),
               kept.at(name).dump() + ": the recipe " + config.recipe + " has no such setting");
  }
}

}  // namespace

TrainConfig default_config(const std::string& recipe) {
  TrainConfig config;
  const RecipeKind kind = recipe_of(recipe).kind;
  config.recipe = recipe;
  if (kind == RecipeKind::kTexts) {
    config.output = "runs/text";
    config.model = "mini";
    config.epochs = 3;
    config.batch_size = 32;
    config.lr = 0;
    config.weight_decay = 0.01;
    config.schedule = "linear";
    config.seed = 123;
    return config;
  }
  if (kind == RecipeKind::kLanguage) {
    config.output = "runs/lm";
    config.model = "tiny";
    config.epochs = 8;
    config.batch_size = 12;
    config.lr = 0;
    config.weight_decay = 0.1;
    config.schedule = "cosine";
    config.warmup_ratio = 0.02;
    return config;
  }
  if (recipe != "cifar") return config;
  config.output = "runs/cifar";
  config.model = "resnet18";
  config.epochs = 30;
  config.lr = 0;
  config.momentum = 0.9;
  config.weight_decay = 5e-4;
  config.schedule = "cosine";
  config.warmup = 1;
  config.augment = true;
  return config;
}

TrainConfig resolved(const TrainConfig& given) {
  TrainConfig config = given;
  const Recipe* recipe = find_recipe(config.recipe);
  if (recipe == nullptr) refuse("recipe", "'" + config.recipe + "'", recipe_names_text());
  if (config.data.empty()) {
    refuse("data", "", "a directory with " + recipe->files + ", or '" + recipe->built_in + "'");
  }
  if (config.output.empty()) refuse("output", "", "a directory");
  check_members(config, internal::kFields);
  if (config.offload_checkpoints && !config.gradient_checkpointing)
    refuse("offload_checkpoints", "true", "false unless gradient_checkpointing is true, too");
  resolve_mesh(config);
  resolve_step(config);
  TrainConfig result = config;
  if (const int64_t logical = make_strategy(config.strategy)->traits().logical_ranks; logical > 0) {
    if (logical % config.nproc != 0)
      refuse("nproc", std::to_string(config.nproc),
             "a power of two up to " + std::to_string(logical) + ", which share strategy " +
                 config.strategy);
    if (config.sampler == "partition" || config.sync_batch_norm)
      refuse("strategy", "'" + config.strategy + "'",
             "another where the sampler is partition, or with sync_batch_norm");
  }
  resolve_diloco(config);
  resolve_device(config);
  constexpr std::array<std::string_view, 8> kBackends = {"",     "shm",  "tcp",  "hierarchical",
                                                         "gloo", "nccl", "peer", "local"};
  if (std::find(kBackends.begin(), kBackends.end(), config.backend) == kBackends.end())
    refuse("backend", "'" + config.backend + "'", "shm, tcp, hierarchical, gloo, nccl or peer");
  if (divides_parameters(config.strategy) && config.nproc > 1 &&
      (config.backend == "gloo" || config.backend == "tcp"))
    refuse("backend", "'" + config.backend + "'",
           "shm or hierarchical, whose ranks share the memory that strategy " + config.strategy +
               " puts parameters in");
  if (config.backend == "local" && config.nproc > 1)
    refuse("backend", "'local'",
           "shm, tcp, hierarchical, gloo, nccl or peer: local is for one rank");
  check_trace(config.trace_steps, config.trace_operators, config.nvtx);
  check_ema(config.ema, config.ema_buffers);
  if (config.check_replicas > 0 && (divides_parameters(config.strategy) || divides_model(config)))
    refuse("check_replicas", std::to_string(config.check_replicas),
           "0 where ranks divide or share one copy of the parameters, as with strategy " +
               config.strategy + (config.mesh.empty() ? "" : " and mesh '" + config.mesh + "'"));
  if (config.ema > 0 && (divides_parameters(config.strategy) || divides_model(config)))
    refuse("ema", number_text(config.ema),
           "0 where ranks divide or share one copy of the parameters, as with strategy " +
               config.strategy + (config.mesh.empty() ? "" : " and mesh '" + config.mesh + "'"));
  if (config.evict_stragglers != 0 &&
      !(config.evict_stragglers > 1 && std::isfinite(config.evict_stragglers)))
    refuse("evict_stragglers", number_text(config.evict_stragglers),
           "how many times slower than the others a rank may be, above 1, or 0");
  switch (recipe->kind) {
    case RecipeKind::kImages:
      resolve_images(result);
      break;
    case RecipeKind::kTexts:
      resolve_texts(result);
      break;
    case RecipeKind::kLanguage:
      resolve_language(result);
      break;
  }
  if (!(result.lr > 0) || !std::isfinite(result.lr))
    refuse("lr", number_text(config.lr), "a number above 0");
  check_has_settings(config);
  return result;
}

void check_against_data(const TrainConfig& config, int64_t train_samples, int64_t test_samples) {
  const auto count = [](int64_t samples) {
    return std::to_string(samples) + (samples == 1 ? " sample" : " samples");
  };
  if (train_samples < 1 || test_samples < 1) {
    throw InvalidArgument(config.data + ": has " + count(train_samples) + " for training and " +
                          count(test_samples) + " for testing; both are needed");
  }
  if (config.nproc > train_samples) {
    throw InvalidArgument("nproc is " + std::to_string(config.nproc) + ", more ranks than the " +
                          count(train_samples) + " for training in " + config.data +
                          "; start fewer");
  }
  if (!config.sync_batch_norm || config.step_samples == 0) return;
  // A rank without a sample of a step takes one that does not count; its statistics would.
  const int64_t fewest = (train_samples - 1) % config.step_samples + 1;
  if (fewest < config.nproc)
    throw InvalidArgument("step_samples is " + std::to_string(config.step_samples) +
                          ", which leaves " + count(fewest) + " for an epoch's last step and its " +
                          std::to_string(config.nproc) +
                          " ranks; with sync_batch_norm each needs one: give another, or start "
                          "fewer ranks");
}

}  // namespace lockstep::inline v0
