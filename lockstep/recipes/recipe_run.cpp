#include "lockstep/recipes/recipe_run.h"

#include <ATen/ops/full.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/scoring.h"
#include "lockstep/report/run_report.h"
#include "lockstep/train/averaged_model.h"
#include "lockstep/train/loop_run.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/requeue_note.h"
#include "lockstep/train/run_record.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

// Beside a checkpoint's config.json, which is the model's own.
constexpr const char* kTrainJson = "train.json";

// Keeps what a run ends with.
class ResultCallback final : public TrainCallback {
 public:
  explicit ResultCallback(TrainResult& result) : result_(result) {}
  void on_epoch(const TrainerState& state, const EpochEvent& event) override {
    result_.loss = event.loss;
    if (event.evaluation) result_.evaluation = *event.evaluation;
    seconds_ += event.seconds;
    samples_ += event.seconds * event.samples_per_s;
    result_.samples_per_s = seconds_ > 0 ? samples_ / seconds_ : 0;
    result_.state = state;
  }

 private:
  TrainResult& result_;
  double seconds_ = 0, samples_ = 0;
};

// The bytes that so many ranks of this host, this one among them, may have together, at most.
struct Allowance {
  int64_t bytes = 0;
  int ranks = 1;
  int64_t share() const { return bytes / ranks; }
};

// Ranks of a host share its memory, and those of a control group its limit. Collective.
Allowance memory_there(Communicator& comm) {
  const Allowance host{
      .bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE),
      .ranks = comm.local_size()};
  const auto limit = memory_limit();
  const at::Tensor own = at::full({1, 2}, comm.node_rank(), at::kLong);
  own.mutable_data_ptr<int64_t>()[1] = limit ? static_cast<int64_t>(limit->id) : -1;
  const at::Tensor all = comm.all_gather(own);
  if (!limit) return host;
  Allowance group{.bytes = static_cast<int64_t>(std::min<uint64_t>(limit->bytes, INT64_MAX)),
                  .ranks = 0};
  const auto* const mine = own.const_data_ptr<int64_t>();
  const auto* const rows = all.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < comm.size(); ++r)
    group.ranks += std::equal(mine, mine + 2, rows + 2 * r) ? 1 : 0;
  return group.share() < host.share() ? group : host;
}

// Before the kernel kills whom it likes. All ranks throw, or none.
void check_fits(Communicator& comm, const TrainConfig& config, Strategy& strategy,
                const torch::optim::Optimizer& optimizer, int64_t average, const StepBytes& step,
                const Allowance& there) {
  StepMemory memory = strategy.state().planned_memory(optimizer);
  memory.average = average;
  memory.set(step);
  const at::Tensor most = at::full({1}, memory.total(), at::kLong);
  comm.all_reduce(most, ReduceOp::kMax);
  const std::string refusal =
      memory_refusal(config.batch_size, most.item<int64_t>(), there.ranks, there.bytes);
  const at::Tensor refused = at::full({1}, refusal.empty() ? 0 : 1, at::kLong);
  comm.all_reduce(refused, ReduceOp::kMax);
  if (refused.item<int64_t>() == 0) return;
  throw InvalidArgument(refusal.empty() ? "batch_size: another host has not the memory for it"
                                        : refusal);
}

// Planned on all ranks, as they share what a step may send. `average`: bytes of the average of the
// parameters. Throws where they do not fit.
StepPlan plan_of(RecipeParts& parts, const TrainConfig& config, int64_t average) {
  Communicator& comm = parts.run.comm();
  if (!comm.device().is_cpu()) return parts.plan(INT64_MAX);  // which has memory of its own
  const Allowance there = memory_there(comm);
  // Hosts may have unequal memory, and all ranks try the same.
  const at::Tensor least = at::full({1}, there.share(), at::kLong);
  comm.all_reduce(least, ReduceOp::kMin);
  const StepPlan plan = parts.plan(least.item<int64_t>());
  check_fits(comm, config, parts.run.strategy(), parts.run.optimizer(), average, plan.bytes, there);
  return plan;
}

void write_report(const RunFolder& folder, const TrainConfig& config, const Recipe& recipe,
                  int ranks) {
  const std::string count = std::to_string(ranks);
  const std::filesystem::path model = config.model;  // a directory by its name alone
  const std::string of = config.recipe + ", " + model.filename().string() + ", ";
  const Words svg = run_report_svg(
      folder.metrics(),
      {.title = {of + count + (ranks == 1 ? " rank" : " ranks"), of + count + " 个 rank"},
       .held_out = recipe.held_out});
  write_file_aside(folder.report(), svg.en);
  write_file_aside(in_chinese(folder.report()), svg.zh);
}

// What is known before the first step.
RunResult begun_record(const TrainConfig& config, const RunFolder& folder) {
  return {.method = config.strategy,
          .model = config.model,
          .dtype = config.amp == "bf16" ? "bfloat16" : "float32",
          .padding = recipe_of(config.recipe).kind == RecipeKind::kTexts ? config.padding : "",
          .batch_size = config.batch_size,
          .checkpoint = folder.best().string()};
}

}  // namespace

std::string memory_refusal(int64_t batch_size, int64_t of_rank, int ranks, int64_t there) {
  if (of_rank <= there / ranks) return {};
  return "batch_size is " + std::to_string(batch_size) + ": a step takes " + bytes_text(of_rank) +
         " of memory on a rank, and the " +
         (ranks == 1 ? "rank" : std::to_string(ranks) + " ranks") + " of this host have " +
         bytes_text(there) + "; give a smaller one";
}

std::optional<TrainConfig> recorded_config(const std::filesystem::path& given) {
  const std::filesystem::path checkpoint = checkpoint_at(given);
  std::filesystem::path file = checkpoint / kTrainJson;
  if (!std::filesystem::exists(file)) {
    if (is_text_model(checkpoint) || is_language_model(checkpoint)) return std::nullopt;
    file = checkpoint / "config.json";  // an image's
  }
  return train_config_from_json(read_small_file(file), file.string());
}

void check_ranks(const Communicator& comm, const TrainConfig& config) {
  if (config.nproc == comm.size() && config.batch_size >= 1) return;
  throw InvalidArgument("lockstep train: the configuration is for " + std::to_string(config.nproc) +
                        " ranks and not resolved for the " + std::to_string(comm.size()) +
                        " that there are");
}

void say(const Communicator& comm, const TrainRunOptions& options, const std::string& line) {
  if (comm.rank() == 0 && options.progress) write_all(STDERR_FILENO, printable(line) + "\n");
}

void say_offload(const Communicator& comm, const TrainRunOptions& options,
                 const TrainConfig& config) {
  if (config.offload_checkpoints && comm.device().is_cpu())
    say(comm, options, "offload_checkpoints does nothing on the CPU: what blocks keep is there");
}

void say_unread(const Communicator& comm, const TrainRunOptions& options, const std::string& data,
                const std::vector<std::string>& unread) {
  if (!unread.empty()) say(comm, options, data + ": not read: " + joined(unread));
}

TrainResult run_recipe(const TrainConfig& given, const TrainSpec& of_config,
                       const TrainRunOptions& options, RecipeParts parts) {
  Communicator& comm = parts.run.comm();
  Strategy& strategy = parts.run.strategy();
  TrainConfig config = given;
  config.strategy = strategy.name();  // chosen by the user or by default
  if (parts.run.recovers() && !options.record.empty())
    throw InvalidArgument(
        "lockstep train: a record of every step is not kept where the run goes on when ranks die; "
        "leave out --on-failure");
  const Recipe& recipe = recipe_of(config.recipe);
  const int64_t steps_per_epoch = parts.task.steps_per_epoch;
  if (parts.task.evaluate) {
    // Ranks evaluate different numbers of batches.
    parts.task.evaluate = [evaluate = std::move(parts.task.evaluate), &strategy] {
      const auto whole = strategy.placement().as_saved();
      return evaluate();
    };
  }
  const RunFolder folder{config.output};
  TrainSpec spec = of_config;
  if (options.resume) spec.output.resume = folder.last();
  spec.output.progress = options.progress;
  const std::string config_json = to_json(config);
  if (recipe.kind == RecipeKind::kImages)
    parts.files.config_json = config_json;
  else
    parts.files.others[kTrainJson] = config_json;

  TrainResult result;
  result.question = std::move(parts.question);
  std::shared_ptr<RunRecord> record;
  if (!options.record.empty()) {
    record =
        std::make_shared<RunRecord>(comm, begun_record(config, folder), std::move(parts.labels));
    record->starts(parts.start);
  }
  const auto average = average_of_run(parts.run, spec);
  LoopRun run{.run = parts.run,
              .task = std::move(parts.task),
              .spec = spec,
              .average = average,
              .former_parts = [folder] { return parts_of(folder); },
              .tells_of_former = options.progress,
              .config_json = config_json,
              .files = parts.files,
              .terminal = options.terminal,
              .counted = recipe.counted,
              .evaluated =
                  [&recipe](const Evaluation& evaluation) {
                    return score_name(recipe) + " " +
                           score_text(recipe, score_of(recipe, evaluation));
                  },
              .layout = strategy.placement().layout(),
              .plan = [&] { return plan_of(parts, config, average ? average->bytes() : 0); },
              .callbacks = {std::make_shared<ResultCallback>(result)}};
  if (record) run.callbacks.push_back(record);
  const LoopEnd end = run_loop(std::move(run));

  result.memory = end.memory;
  result.state = end.state;
  result.stopped_by = end.stopped_by;
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - parts.start).count();
  on_root(comm, [&] {
    parts.run.check_claim();
    write_report(folder, config, recipe, comm.size());
    write_file_aside(folder.result(), to_json(result, config, comm.capabilities().backend));
    if (result.stopped_by != 0) {
      write_requeue_note(
          folder.root,
          {.signal = result.stopped_by, .step = result.state.step, .checkpoint = folder.last()});
    }
  });
  if (record) {
    RunResult recorded = record->finish();
    recorded.epochs = static_cast<double>(recorded.steps) / static_cast<double>(steps_per_epoch);
    on_root(comm, [&] {
      write_output_file(
          options.record,
          to_json(recorded).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    });
  }
  return result;
}

std::string to_json(const TrainResult& result, const TrainConfig& config,
                    const std::string& backend) {
  const RunFolder folder{config.output};
  const TrainerState& state = result.state;
  nlohmann::ordered_json json{{"recipe", config.recipe},
                              {"model", config.model},
                              {"accuracy", state.accuracy},
                              {"loss", result.loss},
                              {"test_loss", result.evaluation.loss}};
  if (recipe_of(config.recipe).kind == RecipeKind::kLanguage) {
    json["perplexity"] = std::exp(result.evaluation.loss);
    json["best_perplexity"] = std::exp(-state.best_score);
  } else {
    json["best_accuracy"] = state.best_score;
  }
  json.update({{"best_step", state.best_step},
               {"epochs", state.epoch},
               {"steps", state.step},
               {"nproc", config.nproc},
               {"backend", backend},
               {"strategy", config.strategy},
               {"mesh", config.mesh},
               {"batch_size", config.batch_size},
               {"seconds", result.seconds},
               {"samples_per_s", result.samples_per_s},
               {"output", folder.root.string()},
               {"checkpoint_best", folder.best().string()},
               {"checkpoint_last", folder.last().string()},
               {"metrics", folder.metrics().string()},
               {"report", folder.report().string()},
               {"memory", to_json(result.memory)}});
  if (result.stopped_by != 0) {
    json["stopped_by"] = stop_signal_name(result.stopped_by);
    if (result.evaluation.samples == 0) {
      for (const char* unknown :
           {"accuracy", "loss", "test_loss", "best_accuracy", "perplexity", "best_perplexity"})
        json.erase(unknown);
    }
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::inline v0
