#include "lockstep/recipes/train_config.h"

#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/sampler.h"
#include "lockstep/mesh/shared_copies.h"
#include "lockstep/recipes/config_fields.h"
#include "lockstep/recipes/scoring.h"
#include "lockstep/train/lm_mesh_strategy.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/settings.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {
namespace {

using internal::kFields;
using nlohmann::ordered_json;
using namespace settings;

// Whether a run begun with `config` may be resumed as `now` with another value of the field.
bool changeable(const TrainConfig& config, const TrainConfig& now, std::string_view name) {
  static const std::set<std::string, std::less<>> names{
      "data",           "output",           "backend",
      "device",         "epochs",           "max_steps",
      "log_every",      "save_every",       "async_save",
      "check_replicas", "evict_stragglers", "workers",
      "timeout",        "init_from",        "gradient_checkpointing",
      "mesh",           "pipe_schedule",    "micro_batches",
      "divided_rows",   "strategy",         "offload_checkpoints",
      "trace_steps",    "trace_operators",  "nvtx",
      "metrics_port"};
  // A schedule that falls is one of all epochs.
  if (name == "epochs" && config.schedule != "constant") return false;
  // Of outer steps that there were not before, or will not be.
  if (name.starts_with("diloco_")) return !trains_apart(config) || !trains_apart(now);
  return names.count(name) != 0;
}

std::string as_text(const std::string& value) {
  return value;
}
std::string as_text(bool value) {
  return value ? "true" : "false";
}
std::string as_text(int64_t value) {
  return std::to_string(value);
}
std::string as_text(double value) {
  return ordered_json(value).dump();
}

std::string way_of(const TrainConfig& config) {
  return "strategy " + config.strategy + (config.mesh.empty() ? "" : " on mesh " + config.mesh);
}

std::string see_help(const TrainConfig& config) {
  return "; `lockstep train " + config.recipe + " --help` lists them";
}

}  // namespace

std::vector<ConfigField> config_fields(const std::string& recipe) {
  std::vector<ConfigField> list;
  const TrainConfig defaults = default_config(recipe);
  kFields(defaults, [&](const Field& field, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    constexpr bool kSwitch = std::is_same_v<Value, bool>;
    const bool stands_for = !field.fallback.empty() && value == Value{};
    list.push_back({.name = std::string(field.name),
                    .help = field.text,
                    .group = field.group,
                    .type = !field.type.empty()              ? field.type
                            : std::is_same_v<Value, int64_t> ? "N"
                                                             : "NUMBER",
                    .fallback = stands_for ? field.fallback : as_text(value),
                    .is_switch = kSwitch});
  });
  return list;
}

void set_field(TrainConfig& config, const std::string& name, const std::string& text) {
  set_member(config, name, text, kFields, see_help(config));
}

std::string to_json(const TrainConfig& config) {
  return settings::to_json(config, kFields);
}

TrainConfig train_config_from_json(const std::string& text, const std::string& source,
                                   const std::optional<TrainConfig>& base) {
  const nlohmann::json json = parse_object(text, source);
  std::string recipe = base ? base->recipe : "mnist";
  if (json.contains("recipe")) read_into(json["recipe"], source + ": recipe", recipe);
  if (find_recipe(recipe) == nullptr)
    refuse(source + ": recipe", "'" + recipe + "'", recipe_names_text());
  if (base && base->recipe != recipe)
    refuse(source + ": recipe", "'" + recipe + "'", "a file for '" + base->recipe + "'");
  TrainConfig config = base ? *base : default_config(recipe);
  read_members(json, source, config, kFields, see_help(config));
  return config;
}

bool trains_apart(const TrainConfig& config) {
  return make_strategy(config.strategy)->traits().trains_apart;
}

bool divides_model(const TrainConfig& config) {
  if (config.mesh.empty()) return false;
  const auto axes = parse_axes(config.mesh);
  return std::any_of(axes.begin(), axes.end(), [](const MeshAxis& axis) {
    const auto& ways = parallel_axes();
    return axis.name != "data" && std::find(ways.begin(), ways.end(), axis.name) != ways.end();
  });
}

Parallelism parallelism_of(const TrainConfig& config) {
  Parallelism how = parse_parallelism(config.mesh);
  how.axes = with_all_axes(how.axes, static_cast<int>(config.nproc));
  how.zero = config.strategy == "ddp" ? 0 : config.strategy.back() - '0';
  how.schedule = config.pipe_schedule;
  how.micro_batches = static_cast<int>(config.micro_batches);
  how.divides_rows = config.divided_rows;
  return how;
}

std::shared_ptr<Strategy> strategy_of(const TrainConfig& config) {
  if (divides_model(config)) {
    LmMeshOptions options{.dropout_seed = static_cast<uint64_t>(config.seed) | 1};
    if (config.gradient_checkpointing)
      options.prepare = [offload = config.offload_checkpoints](TransformerLm& part) {
        checkpoint_layers<LmUnit::Signature>(
            *part, {.names = {"model.layers.*"}, .options = {.offload = offload}});
      };
    return make_lm_mesh_strategy(parallelism_of(config), options);
  }
  StrategyOptions options;
  if (trains_apart(config))
    options.diloco = DiLoCoOptions{
        .period = config.diloco_steps, .lr = config.diloco_lr, .momentum = config.diloco_momentum};
  if (!config.mesh.empty() && divides_parameters(config.strategy))
    options.copies = shared_copies(config.mesh, static_cast<int>(config.nproc));
  return make_strategy(config.strategy, options);
}

TrainSpec spec_of(const TrainConfig& config) {
  const Recipe& recipe = recipe_of(config.recipe);
  const bool images = recipe.kind == RecipeKind::kImages;
  const RunFolder folder{config.output};
  constexpr int64_t kKept = 1;  // besides the best
  TrainSpec spec{
      .data = {.batch_size = config.batch_size,
               .step_samples = config.step_samples,
               .fixed_parts = config.sampler == "partition",
               .workers = config.workers,
               .seed = config.seed},
      .step = {.optimizer = {.lr = config.lr, .weight_decay = config.weight_decay},
               .schedule = {.name = config.schedule},
               .precision =
                   config.amp == "bf16" ? optim::Precision::kBFloat16 : optim::Precision::kFloat32},
      .epochs = static_cast<double>(config.epochs),
      .loop = {.max_steps = config.max_steps,
               .log_every = config.log_every,
               .log_ends = true,
               .save_every = config.save_every,
               .score = [&recipe](
                            const Evaluation& evaluation) { return score_of(recipe, evaluation); }},
      .check_replicas = config.check_replicas,
      .evict_stragglers = config.evict_stragglers,
      .ema = config.ema,
      .ema_buffers = config.ema_buffers,
      .output = {.folder = folder.root,
                 .checkpoints = folder.checkpoints(),
                 .kept = kKept,
                 .async_save = config.async_save,
                 .tensorboard = true,
                 .metrics_port = config.metrics_port}};
  add_trace(spec.loop, config.trace_steps, config.trace_operators, config.nvtx, folder.trace());
  optim::OptimizerSpec& optimizer = spec.step.optimizer;
  if (images) {
    optimizer.type = optim::OptimizerType::kSgd;
    optimizer.momentum = config.momentum;
    spec.step.schedule.warmup_epochs = config.warmup;
  } else {
    spec.step.schedule.warmup_ratio = config.warmup_ratio;
  }
  // Without weight decay there is one group, in the model's order.
  if (!images || config.weight_decay != 0) optimizer.no_decay = optim::NoDecay{};
  if (recipe.kind == RecipeKind::kLanguage) spec.step.max_norm = config.clip;
  return spec;
}

int64_t batches_of_step(const TrainConfig& config) {
  if (divides_model(config)) {
    const Parallelism how = parallelism_of(config);
    return how.size_of("data") * how.size_of("expert");
  }
  const int64_t logical = make_strategy(config.strategy)->traits().logical_ranks;
  return logical > 0 ? logical : config.nproc;
}

int64_t samples_of_step(const TrainConfig& config) {
  return config.step_samples > 0 ? config.step_samples
                                 : batches_of_step(config) * config.batch_size;
}

bool shares_unequally(const TrainConfig& config) {
  return !divides_model(config) && config.sampler != "partition" &&
         make_strategy(config.strategy)->traits().logical_ranks == 0;
}

int64_t steps_per_epoch(const TrainConfig& config, int64_t samples) {
  if (config.step_samples > 0)
    return data::batch_count({.batch_size = config.step_samples}, samples);
  const int64_t rows = batches_of_step(config), batch = config.batch_size;
  if (const int64_t logical = make_strategy(config.strategy)->traits().logical_ranks; logical > 0)
    return data::LogicalSampler(samples, logical, 0, 1, batch).size() / batch;
  const int64_t own =
      config.sampler == "partition"
          ? static_cast<int64_t>(
                data::DataPartitioner::equal(samples, rows, config.seed).use(0).size())
          : data::DistributedSampler(samples, rows, 0).size();
  return data::batch_count({.batch_size = batch}, own);
}

void check_resumable(const TrainConfig& recorded, const TrainConfig& now) {
  // Other ranks may go on with the same samples. Fixed parts of the data are those of the ranks.
  const int64_t samples = samples_of_step(recorded), samples_now = samples_of_step(now);
  const bool same = samples > 0 && samples == samples_now && recorded.sampler != "partition";
  bool says_why = samples == samples_now || samples == 0;
  std::string differences;
  kFields(recorded, [&](const Field& field, const auto& before) {
    const std::string_view name = field.name;
    if (changeable(recorded, now, name)) return;
    static const std::set<std::string_view> of_a_step{"nproc", "batch_size", "step_samples"};
    const bool of_step = of_a_step.count(name) != 0;
    if (of_step && same) return;
    kFields(now, [&](const Field& other, const auto& after) {
      if (name != other.name || as_text(before) == as_text(after)) return;
      says_why = says_why || of_step;
      differences += (differences.empty() ? "" : ", ");
      differences.append(name)
          .append(" was ")
          .append(as_text(before))
          .append(" and is now ")
          .append(as_text(after));
    });
  });
  if (!says_why) {
    // A strategy or a mesh makes other steps of the same settings.
    differences += (differences.empty() ? "a step had " : ", a step had ") +
                   std::to_string(samples) + " samples under " + way_of(recorded) +
                   " and now has " + std::to_string(samples_now) + " under " + way_of(now);
  }
  if (!differences.empty()) {
    throw InvalidArgument("cannot resume: " + differences +
                          "; resume with the recorded settings, or start anew elsewhere");
  }
}

}  // namespace lockstep::inline v0
