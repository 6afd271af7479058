#include "lockstep/train/loop_run.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/comm/first_error.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/train/averaged_model.h"
#include "lockstep/train/checkpointing.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/prometheus_callback.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/requeue_note.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/straggler.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/tensorboard_callback.h"

namespace lockstep::inline v0 {
namespace {

void say(const std::string& line) {
  write_all(STDERR_FILENO, line + "\n");
}

// Where a run begins.
enum class Start : uint8_t {
  kAnew,
  kResumed,  // from a checkpoint
  kInPlace,  // where a rank died
};

Start find_start(const LoopRun& run, const TrainingRun& saved) {
  if (run.run.goes_on()) return Start::kInPlace;
  const TrainSpec::Output& output = run.spec.output;
  const std::filesystem::path last = output.checkpoints / "last";
  const auto from = goes_on_from_last(run.run.comm(), output.folder, last) ? last : output.resume;
  if (!from) return Start::kAnew;
  if (!checkpoint_exists(*from))
    throw CheckpointError(from->string() + ": there is no checkpoint to resume from");
  restore_training(saved, *from);
  return Start::kResumed;
}

// On rank 0.
void start_folder(const LoopRun& run, Start start) {
  const std::filesystem::path& root = run.spec.output.folder;
  if (start == Start::kAnew && !run.run.has_room()) {
    const auto moved = make_room_for_run(root, run.former_parts(), process_env());
    if (moved && run.tells_of_former) say(*moved);
  } else {
    name_job(root, process_env());
  }
  remove_requeue_note(root);
  if (!run.config_json.empty()) write_file_aside(RunFolder{root}.config(), run.config_json);
}

// What a run writes on rank 0.
std::shared_ptr<TrainCallback> metrics_file(const LoopRun& run, TrainLoop& loop, Start start) {
  const RunFolder folder{run.spec.output.folder};
  JsonlWriter metrics(folder.metrics(), start == Start::kAnew ? JsonlWriter::Mode::kReplace
                                                              : JsonlWriter::Mode::kAppend);
  if (start != Start::kInPlace) metrics.truncate(loop.state().metrics_bytes);
  return std::make_shared<MetricsCallback>(std::move(metrics));
}

std::shared_ptr<TrainCallback> tensorboard_files(const LoopRun& run, TrainLoop& loop, Start start) {
  const RunFolder folder{run.spec.output.folder};
  TensorBoardOptions options;
  // The step that led to the place is told of once more.
  if (start == Start::kInPlace) options.resumed_at = run.run.goes_on_at();
  if (start == Start::kResumed) options.resumed_at = loop.state().step + 1;
  return std::make_shared<TensorBoardCallback>(TensorBoardWriter(folder.tensorboard(), options));
}

// Those of this rank. `says`: rank 0 writes where they are.
std::shared_ptr<TrainCallback> served_metrics(Communicator& comm, int64_t first, bool says) {
  const int64_t port = first + comm.local_rank();
  std::shared_ptr<PrometheusCallback> callback;
  std::string problem;
  try {
    if (port > UINT16_MAX)
      throw InvalidArgument("metrics_port is " + std::to_string(first) + ", and local rank " +
                            std::to_string(comm.local_rank()) + " has no port; give at most " +
                            std::to_string(UINT16_MAX - comm.local_size() + 1));
    callback = std::make_shared<PrometheusCallback>(comm, static_cast<uint16_t>(port));
  } catch (const Error& error) {
    problem = error.what();
  }
  // A port may be taken on one host only; the other ranks would wait for this one in vain.
  const std::string first_problem = first_error(comm, problem);
  if (!first_problem.empty()) throw InvalidArgument(first_problem);
  if (says && comm.rank() == 0)
    say("metrics: http://127.0.0.1:" + std::to_string(port) + "/metrics" +
        (comm.local_size() > 1 ? ", and the other ranks' on the ports after it" : ""));
  return callback;
}

std::shared_ptr<TrainCallback> progress_bar(const LoopRun& run, const TrainLoopOptions& options) {
  return std::make_shared<ProgressCallback>(
      ProgressCallbackOptions{.terminal = run.terminal,
                              .epochs = options.epochs,
                              .steps_per_epoch = run.task.steps_per_epoch,
                              .max_steps = options.max_steps,
                              .ranks = run.run.comm().size(),
                              .counted = run.counted,
                              .evaluated = run.evaluated});
}

}  // namespace

LoopEnd run_loop(LoopRun run) {
  ModelOnRanks& model = run.run;
  Communicator& comm = model.comm();
  Strategy& strategy = model.strategy();
  const TrainSpec::Output& output = run.spec.output;
  on_root(comm, [&] { model.claim(output.folder); });
  const TrainLoopOptions options = loop_options(run.spec, run.task.steps_per_epoch);
  const auto& average = run.average;
  if (average && run.task.evaluate)
    run.task.evaluate = of_average(average, std::move(run.task.evaluate));
  TrainLoop loop(comm, run.task, options, run.state);
  const TrainingRun saved{.run = model, .loop = loop, .files = run.files, .average = average};
  const Start start = find_start(run, saved);
  const bool says = output.progress && !model.has_room() && start != Start::kInPlace;

  // Each has a place on all ranks, however many these are.
  if (average) loop.add(std::make_shared<AverageCallback>(average));
  loop.add(replica_check(comm, model.model(), strategy, run.spec.check_replicas));
  loop.add(comm.size() > 1 ? straggler_report(comm, run.spec.evict_stragglers) : nullptr);
  if (output.metrics_port > 0) loop.add(served_metrics(comm, output.metrics_port, says));
  std::shared_ptr<TrainCallback> metrics, tensorboard;
  on_root(comm, [&] {
    start_folder(run, start);
    metrics = metrics_file(run, loop, start);
    if (output.tensorboard) tensorboard = tensorboard_files(run, loop, start);
  });
  loop.add(metrics);
  loop.add(tensorboard);
  model.has_made_room();
  // Where a rank died there may be gradients of a step, which a trial would drop.
  const auto step =
      run.plan && start != Start::kInPlace ? std::optional(run.plan().bytes) : std::nullopt;
  const bool here = says && comm.rank() == 0;
  if (here && !run.layout.empty()) say(run.layout);
  // Its lines come before the bar.
  std::shared_ptr<MemoryCallback> memory;
  if (start != Start::kInPlace) {
    memory = std::make_shared<MemoryCallback>(
        strategy, model.optimizer(), here ? std::function<void(const std::string&)>(say) : nullptr,
        RunFolder{output.folder}.memory(), step, average ? average->bytes() : 0);
    model.keep_memory(memory);
  }
  loop.add(memory);
  loop.add(comm.rank() == 0 && output.progress ? progress_bar(run, options) : nullptr);
  for (const auto& callback : run.callbacks) loop.add(callback);
  if (output.saves)
    loop.add(std::make_shared<CheckpointCallback>(saved, output.checkpoints, output.kept,
                                                  output.async_save, run.spec.loop.timeline));

  const ModelOnRanks::Training training(model, loop);
  LoopEnd end{.first_step = loop.state().step, .first_samples = loop.state().samples};
  const auto begun = std::chrono::steady_clock::now();
  loop.run();
  strategy.state().check_steps();  // those since the last log or save
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  end.state = loop.state();
  end.stopped_by = loop.stopped_by();
  if (model.memory()) end.memory = model.memory()->ranks();
  if (run.at_end) run.at_end(end);
  return end;
}

}  // namespace lockstep::inline v0
