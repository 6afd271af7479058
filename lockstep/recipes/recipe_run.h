// A run of `lockstep train`, as far as it is the same for every recipe: the loop with its metrics,
// progress, checkpoints and report.
#pragma once

#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/recipes/train_config.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_plan.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0 {

// How run_recipe() runs a training.
struct TrainRunOptions {
  bool resume = false;     // from output/checkpoints/last
  bool progress = true;    // on rank 0's stderr
  Terminal terminal = {};  // that stderr goes to
  // Rank 0 writes a record of the steps of this call to this file (run_record.h). The same on every
  // rank, since ranks add up each step's loss. Empty: no record.
  std::filesystem::path record = {};
  // Replaces the configuration's; its name is recorded.
  std::shared_ptr<Strategy> strategy = nullptr;
};

// Prints a line on rank 0's stderr if options.progress is set.
LOCKSTEP_API void say(const Communicator& comm, const TrainRunOptions& options,
                      const std::string& line);
// Says that there is nothing to offload on the CPU, if the configuration asks for it.
LOCKSTEP_API void say_offload(const Communicator& comm, const TrainRunOptions& options,
                              const TrainConfig& config);
// Says "DATA: not read: test.txt", unless all files were read.
LOCKSTEP_API void say_unread(const Communicator& comm, const TrainRunOptions& options,
                             const std::string& data, const std::vector<std::string>& unread);

// The end of a run. The same on every rank.
struct TrainResult {
  TrainerState state;
  double loss = 0;           // mean of the last epoch, over ranks and samples
  Evaluation evaluation;     // the latest one
  double seconds = 0;        // of this call, from loading data to the last checkpoint
  double samples_per_s = 0;  // of training only
  // The memory of each rank: as predicted, and as allocated in the first step of this call.
  std::vector<RankMemory> memory;
  // The signal that stopped it (train/stop_signals.h); 0: none. The state is then saved, and
  // output/requeue says so (train/requeue_note.h).
  int stopped_by = 0;
  // Options of `lockstep predict` for a question to the trained model, quoted for a shell.
  std::string question;
};

// Trains by `config` and writes the files of run_folder.h into config.output. A former run there is
// moved aside unless it is resumed. SIGTERM or SIGUSR1 to any rank ends the run at a step boundary,
// after a save. If ranks are replaced (`--on-failure replace`), the run continues in place, and
// `comm` becomes the communicator of the present ranks.
// Requires: `config` is resolved(), and its nproc is the number of ranks.
// Collective: all ranks.
// Throws: DataError, CheckpointError, InvalidArgument before the first step; later as run_loop(),
// the communicator and the checkpoint's writer.
LOCKSTEP_API TrainResult train_recipe(Communicator& comm, const TrainConfig& config,
                                      const TrainRunOptions& options = {});

// The reason why a step that takes `of_rank` bytes on each of a host's ranks is not begun if they
// have `there` bytes together; "" if it fits.
LOCKSTEP_API std::string memory_refusal(int64_t batch_size, int64_t of_rank, int ranks,
                                        int64_t there);

// The configuration of the run that has written `checkpoint`; nullopt if no recipe has written it.
// Throws: CheckpointError, InvalidArgument.
LOCKSTEP_API std::optional<TrainConfig> recorded_config(const std::filesystem::path& checkpoint);

// The result as JSON (result.json, --json): recipe, model, accuracy, loss, best_accuracy (of lm
// perplexity and best_perplexity), best_step, epochs, steps, nproc, backend, strategy, mesh,
// batch_size, seconds, samples_per_s, output, checkpoint_best, checkpoint_last, metrics, report;
// stopped_by ("SIGTERM") of a run that a signal has stopped, which lacks scores where nothing was
// evaluated; memory: {"predicted": {"parameters", "gradients", "optimizer", "buffers",
// "average", "activations", "temporaries", "total"}, "allocated": the same, "difference_percent"}, bytes of
// rank 0, and "ranks": a list of {"predicted", "allocated"}, every rank's total.
LOCKSTEP_API std::string to_json(const TrainResult& result, const TrainConfig& config,
                                 const std::string& backend);

// For recipes.
// Requires: whatever it refers to outlives the call.
struct RecipeParts {
  ModelOnRanks& run;
  TrainTask task;
  std::function<StepPlan(int64_t limit)> plan;  // SupervisedTask's
  CheckpointFiles files;                        // of checkpoints, without the configuration
  std::vector<std::string> labels = {};         // of the classes; may be empty
  std::string question;                         // TrainResult's
  std::chrono::steady_clock::time_point start;
};
// One of the run's attempts().
LOCKSTEP_API TrainResult run_recipe(const TrainConfig& given, const TrainSpec& spec,
                                    const TrainRunOptions& options, RecipeParts parts);
// Returns what `make` makes, drawn from `seed`. Afterwards the generator is seeded with seed +
// rank. Ranks that are threads share one generator. kOfRankZero: rank 0 draws while the others
// wait, and they later receive its parameters in place of their own draws. kOfAll: each rank waits
// for the one before it.
// Collective: all ranks.
enum class Draws : uint8_t { kOfRankZero, kOfAll };
template <typename Make>
auto drawn_from_seed(Communicator& comm, int64_t seed, const Make& make,
                     Draws count = Draws::kOfRankZero) {
  // Ranks that can be replaced are processes, and a new one calls this without the others.
  const bool processes = comm.generation() > 0;
  const int turns = processes ? 0 : count == Draws::kOfAll ? comm.size() : 1;
  const int own = std::min(comm.rank(), turns);
  for (int turn = 0; turn < own; ++turn) comm.barrier();
  torch::manual_seed(static_cast<uint64_t>(seed));
  auto made = make();
  for (int turn = own; turn < turns; ++turn) comm.barrier();
  torch::manual_seed(static_cast<uint64_t>(seed + comm.rank()));
  return made;
}
// Throws: InvalidArgument unless the configuration is for these ranks, and resolved.
LOCKSTEP_API void check_ranks(const Communicator& comm, const TrainConfig& config);

}  // namespace lockstep::inline v0
