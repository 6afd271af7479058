#include "lockstep/cli/engine/train/auto_mesh.h"

#include <algorithm>

#include "lockstep/cli/plan/job_report.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/recipes/recipes.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr int64_t kUsualBatch = 12;  // resolved()'s

plan::Machine rough_machine(int ranks) {
  // What a present core does; between layouts of one host the ratios decide.
  constexpr double kFlopsOfCore = 5e10, kBytesOfCore = 5e9, kMostBytes = 1e11;
  // The host's processors, and not those that a rank may use: every rank must find the same.
  const double cores = std::max(1.0, static_cast<double>(host_cpu_count()) / ranks);
  plan::Machine machine;
  machine.name = "this host, roughly";
  machine.ranks_per_host = ranks;
  machine.float32 = kFlopsOfCore * cores;
  machine.bfloat16 = machine.float32;
  machine.memory = static_cast<double>(host_memory_bytes()) / ranks;
  machine.memory_bandwidth = std::min(kBytesOfCore * cores, kMostBytes / ranks);
  machine.launch = 5e-6;
  machine.inside = {.latency = 5e-6, .bandwidth = 4e9};
  machine.between = machine.inside;
  machine.host = true;
  return machine;
}

}  // namespace

plan::SearchRequest request_of(const TrainConfig& config, std::optional<int> zero) {
  plan::SearchRequest request{.ranks = static_cast<int>(config.nproc)};
  const int64_t batch = config.batch_size > 0 ? config.batch_size : kUsualBatch;
  request.job.global_batch = config.step_samples > 0 ? config.step_samples : batch * config.nproc;
  request.job.sequence = config.context;
  request.job.precision =
      config.amp == "bf16" ? plan::Precision::kBFloat16 : plan::Precision::kFloat32;
  request.job.masters = false;  // parameters are of 32 bits
  request.zero = zero;
  request.as_trained = true;
  if (config.gradient_checkpointing) request.activations = plan::Activations::kRecomputed;
  if (config.divided_rows) request.divides_rows = true;
  if (config.pipe_schedule != "1f1b") request.schedule = config.pipe_schedule;
  return request;
}

void take_layout(const plan::Layout& layout, TrainConfig* config) {
  config->mesh.clear();
  const bool grouped = layout.shard_ranks > 0;
  const std::pair<const char*, int> axes[] = {
      {"data", grouped ? layout.data / layout.shard_ranks : layout.data},
      {"pipe", layout.pipe},
      {"context", layout.context},
      {"expert", layout.expert},
      {"tensor", layout.tensor},
      {"shard", layout.shard_ranks}};
  for (const auto& [axis, size] : axes)
    if (size > 1 || (size == 1 && std::string(axis) == "data"))
      config->mesh +=
          (config->mesh.empty() ? "" : ",") + std::string(axis) + "=" + std::to_string(size);
  const bool divided =
      layout.pipe > 1 || layout.context > 1 || layout.expert > 1 || layout.tensor > 1;
  config->strategy = layout.zero == 0 ? "ddp" : "zero" + std::to_string(layout.zero);
  config->pipe_schedule = layout.pipe > 1 ? layout.schedule : "1f1b";
  config->micro_batches = divided ? layout.micro_batches() : 0;
  config->divided_rows = layout.divides_rows;
  config->gradient_checkpointing = layout.activations == plan::Activations::kRecomputed;
  if (config->step_samples == 0) config->batch_size = layout.global_batch / layout.batch_ranks();
}

std::vector<std::string> options_of_layout(const TrainConfig& config) {
  const auto yes = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> options{"--mesh",
                                   config.mesh,
                                   "--strategy",
                                   config.strategy,
                                   "--pipe-schedule",
                                   config.pipe_schedule,
                                   "--divided-rows",
                                   yes(config.divided_rows),
                                   "--gradient-checkpointing",
                                   yes(config.gradient_checkpointing)};
  const auto add = [&](const char* option, int64_t value) {
    options.insert(options.end(), {option, std::to_string(value)});
  };
  if (config.micro_batches > 0) add("--micro-batches", config.micro_batches);
  if (config.step_samples == 0) add("--batch-size", config.batch_size);
  return options;
}

plan::Calibration this_machine(int ranks, const EnvLookup& env) {
  const auto file = env("LOCKSTEP_MACHINE");
  if (!file || file->empty()) return {.machine = rough_machine(ranks), .stack = std::nullopt};
  return plan::with_ranks(plan::find_calibration(*file), ranks);
}

plan::ModelShape shape_of(const std::string& model) {
  const auto& presets = lm_preset_names();
  if (std::find(presets.begin(), presets.end(), model) == presets.end())
    return plan::read_model_file(model);
  LmConfig preset = lm_preset(model);
  // The data's, which is not known yet: as many as texts of characters have.
  constexpr int64_t kWords = 4096;
  preset.vocab_size = kWords;
  return plan::read_model_shape(to_json(preset), "model " + model);
}

const plan::Candidate& simplest_of(const std::vector<plan::Candidate>& best) {
  // A plan is no more exact than this.
  constexpr double kAlike = 0.02;
  // Stage 1 sends as much as none, in two halves, and leaves each rank less to do; so between these
  // two the plan alone decides.
  const auto complexity = [](const plan::Layout& layout) {
    int divided = 0;
    for (const int size : {layout.pipe, layout.context, layout.expert, layout.tensor})
      divided += size > 1 ? 1 : 0;
    return std::pair(divided, layout.zero > 1 ? layout.zero : 0);
  };
  const plan::Candidate* found = &best.front();
  for (const plan::Candidate& one : best)
    if (one.estimate.step <= (1 + kAlike) * best.front().estimate.step &&
        complexity(one.layout) < complexity(found->layout))
      found = &one;
  return *found;
}

std::string choose_mesh(std::optional<int> zero, const EnvLookup& env, TrainConfig* config) {
  if (recipe_of(config->recipe).kind != RecipeKind::kLanguage)
    throw InvalidArgument(
        "mesh is 'auto'; give axes data and shard: lm alone has models that divide");
  const plan::Calibration machine = this_machine(static_cast<int>(config->nproc), env);
  plan::Stack stack = machine.stack.value_or(plan::known_stack("lockstep"));
  // Ranks on the host's processors have no others that could send meanwhile.
  if (machine.machine.host && !machine.stack) stack.overlap = 0;
  const plan::SearchRequest request = request_of(*config, zero);
  const plan::SearchResult found =
      plan::search(shape_of(config->model), request, machine.machine, stack);
  if (found.best.empty())
    throw InvalidArgument("mesh is 'auto', and no layout fits into the " +
                          cli::bytes_text(machine.machine.memory) + " of each of " +
                          std::to_string(config->nproc) + " ranks" +
                          (found.too_large.empty() ? "" : ": " + found.too_large.front().loses) +
                          "; give a smaller model or batch, or more ranks");
  const plan::Candidate& best = simplest_of(found.best);
  take_layout(best.layout, config);
  return "mesh auto: " + config->mesh + ", strategy " + config->strategy + " (" +
         to_string(best.layout) + "), of " + cli::grouped(found.layouts) + " layouts; planned " +
         cli::bytes_text(best.estimate.memory.of_worst().total()) + " and " +
         cli::seconds_text(best.estimate.step) + " a step by " + machine.machine.name;
}

}  // namespace lockstep::inline v0::engine
