// A run of `lockstep train`: what is the same for every recipe. The loop with its metrics,
// progress, checkpoints and report, around what a recipe trains.
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
#include "lockstep/recipes/train_config.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {

struct TrainRunOptions {
  bool resume = false;     // go on from output/checkpoints/last
  bool progress = true;    // on rank 0's stderr
  Terminal terminal = {};  // that stderr goes to
  // Rank 0 writes the steps of this call here (run_record.h). The same on every rank: ranks add up
  // a step's loss. Empty: nobody does.
  std::filesystem::path record = {};
  // In place of the configuration's; its name is what is recorded.
  std::shared_ptr<Strategy> strategy = nullptr;
};

// A line for whoever looks at rank 0's stderr, where options.progress is.
void say(const Communicator& comm, const TrainRunOptions& options, const std::string& line);
// That there is nothing to offload on the CPU, where it is asked for.
void say_offload(const Communicator& comm, const TrainRunOptions& options,
                 const TrainConfig& config);
// "DATA: not read: test.txt"; nothing where all was.
void say_unread(const Communicator& comm, const TrainRunOptions& options, const std::string& data,
                const std::vector<std::string>& unread);

// How a run ended. The same on every rank.
struct TrainResult {
  TrainerState state;
  double loss = 0;           // mean of the last epoch, over ranks and samples
  Evaluation evaluation;     // the latest one
  double seconds = 0;        // of this call, from loading data to the last checkpoint
  double samples_per_s = 0;  // of training, evaluation and checkpoints left out
  // Rank 0's: as planned, and as counted in the first step of this call; zeros on the other ranks.
  StepMemory planned_memory, memory;
  // The signal that ended it before its end (train/stop_signals.h); 0: none did. The state is
  // saved, and output/requeue says so (train/requeue_note.h).
  int stopped_by = 0;
  // Options of `lockstep predict` that ask the trained model something, as a shell takes them.
  std::string question;
};

// Trains by `config`, which must be resolved() and whose nproc must be the number of ranks, and
// leaves in config.output what run_folder.h names. A former run there is moved aside unless it is
// resumed. SIGTERM or SIGUSR1 to any rank ends it at a step boundary, saved. Where ranks are
// replaced (`--on-failure replace`) the run goes on in place, and `comm` is afterwards that of the
// ranks that there are then. Collective. Throws DataError, CheckpointError, InvalidArgument before
// the first step; later what the communicator and the checkpoint's writer throw.
TrainResult train_recipe(Communicator& comm, const TrainConfig& config,
                         const TrainRunOptions& options = {});

// Why a step that takes so many bytes on each of a host's ranks is not begun, where they have
// `there` in all; "" where it is.
std::string memory_refusal(int64_t batch_size, int64_t of_rank, int ranks, int64_t there);

// The configuration of the run that has written `checkpoint`; nothing where a recipe has not.
// Throws CheckpointError, InvalidArgument.
std::optional<TrainConfig> recorded_config(const std::filesystem::path& checkpoint);

// The result as JSON (result.json, --json): recipe, model, accuracy, loss, best_accuracy (of lm
// perplexity and best_perplexity), best_step, epochs, steps, nproc, backend, strategy, mesh,
// batch_size, seconds, samples_per_s, output, checkpoint_best, checkpoint_last, metrics, report;
// stopped_by ("SIGTERM") of a run that a signal has stopped, which lacks scores where nothing was
// evaluated; memory: {"planned": {"parameters", "gradients", "optimizer", "buffers",
// "activations"}, "counted": the same}, bytes of rank 0.
std::string to_json(const TrainResult& result, const TrainConfig& config,
                    const std::string& backend);

// For recipes. All that is referred to must outlive the call.
struct RecipeParts {
  ModelOnRanks& run;
  TrainTask task;
  std::function<int64_t(int64_t limit)> plan_activations;  // SupervisedTask's
  CheckpointFiles files;                 // of checkpoints, the configuration left out
  std::vector<std::string> labels = {};  // of the classes, where there are any
  std::string question;                  // TrainResult's
  std::chrono::steady_clock::time_point start;
};
// One of the run's attempts().
TrainResult run_recipe(const TrainConfig& given, const TrainSpec& spec,
                       const TrainRunOptions& options, RecipeParts parts);
// What `make` gives, drawn from `seed`. Afterwards the generator stands at seed + rank. Collective.
// Ranks that are threads share one generator, so rank 0 draws while the others wait; they receive
// its parameters later, what they draw themselves does not count. Where it does, each waits for the
// one before.
enum class Draws : uint8_t { kOfRankZero, kOfAll };
template <typename Make>
auto drawn_from_seed(Communicator& comm, int64_t seed, const Make& make,
                     Draws count = Draws::kOfRankZero) {
  // Ranks that can be replaced are processes, and a new one is alone here.
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
// Throws InvalidArgument unless the configuration is for these ranks, and resolved.
void check_ranks(const Communicator& comm, const TrainConfig& config);

}  // namespace lockstep
