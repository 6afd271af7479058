#include "lockstep/train/checkpointing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/train/averaged_model.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kSums =
    "running_loss";  // float64 [ranks, 4]: since_log and of_epoch, loss and samples each

at::Tensor pack_sums(TrainLoop& trainer) {
  at::Tensor sums = at::empty({1, 4}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  values[0] = trainer.since_log().loss;
  values[1] = trainer.since_log().samples;
  values[2] = trainer.of_epoch().loss;
  values[3] = trainer.of_epoch().samples;
  return sums;
}

// What this rank writes. Collective.
Checkpoint share_of(const TrainingRun& run) {
  ModelOnRanks& model = run.run;
  const at::Tensor sums = model.comm().gather(pack_sums(run.loop), 0);
  Checkpoint checkpoint =
      share_of_run_state(model.strategy(), model.optimizer(), model.scaler(), run.files);
  if (model.comm().rank() != 0) return checkpoint;
  if (run.average) add_training_parameters(*run.average, checkpoint);
  checkpoint.ranks.tensors.emplace_back(kSums, sums);
  checkpoint.trainer_json = to_json(run.loop.state());
  return checkpoint;
}

// WriteOptions::around.
std::function<void(const std::function<void()>&)> marked_writing(
    const std::shared_ptr<Timeline>& timeline) {
  if (!timeline) return {};
  return [timeline](const std::function<void()>& work) {
    const TimelineSpan span(timeline.get(), "checkpoint write");
    work();
  };
}

// This rank's sums: its own, or, where there were other ranks, all of them on rank 0.
void take_over(TrainLoop& trainer, const at::Tensor& sums, const Communicator& comm) {
  at::Tensor mine;
  if (sums.size(0) == comm.size())
    mine = sums[comm.rank()];
  else
    mine = comm.rank() == 0 ? sums.sum(0) : at::zeros({4}, at::kDouble);
  const double* values = mine.const_data_ptr<double>();
  trainer.since_log() = {values[0], values[1]};
  trainer.of_epoch() = {values[2], values[3]};
}

void check_steps(const TrainerState& saved, TrainLoop& trainer, const std::string& source) {
  const int64_t steps = trainer.state().steps_per_epoch;
  if (saved.steps_per_epoch == 0 || saved.steps_per_epoch == steps) return;
  throw CheckpointError(source + ": is of epochs of " + std::to_string(saved.steps_per_epoch) +
                        " steps, and these have " + std::to_string(steps) +
                        "; resume with the same data, and with batch size times ranks as it was");
}

}  // namespace

void restore_training(const TrainingRun& run, const std::filesystem::path& path) {
  ModelOnRanks& model = run.run;
  Checkpoint checkpoint =
      read_checkpoint(path, CheckpointParts::kAll, model_form(model.strategy()));
  const std::string source = path.string();
  auto state = trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json");
  const auto& sums = of_all_ranks(checkpoint.ranks, kSums, source);
  if (sums.size(1) != 4 || sums.scalar_type() != at::kDouble)
    throw CheckpointError(source + ": " + kSums + " is damaged");
  check_steps(state, run.loop, source);
  state.steps_per_epoch = run.loop.state().steps_per_epoch;
  if (run.average) take_average(*run.average, model.model(), checkpoint, source);
  restore_run_state(checkpoint, source, model.strategy(), model.optimizer(), model.scaler());
  take_over(run.loop, sums, model.comm());
  run.loop.state() = state;
}

bool goes_on_from_last(Communicator& comm, const std::filesystem::path& root,
                       const std::filesystem::path& last) {
  const at::Tensor decision = at::zeros({1}, at::kLong);
  on_root(comm, [&] {
    const bool own = left_by_this_job(root, process_env()) && checkpoint_exists(last);
    decision.fill_(own ? 1 : 0);
  });
  comm.broadcast(decision, 0);
  return decision.item<int64_t>() != 0;
}

CheckpointCallback::CheckpointCallback(TrainingRun run, std::filesystem::path folder, int64_t limit,
                                       bool async, std::shared_ptr<Timeline> timeline)
    : run_(std::move(run)),
      folder_(std::move(folder)),
      limit_(limit),
      async_(async),
      timeline_(std::move(timeline)),
      writer_(run_.run.comm()) {}

void CheckpointCallback::before_log(const TrainerState&, LogEvent& event) {
  if (saves_ == 0) return;
  event.figures.emplace_back("checkpoint_s", stalled_ / static_cast<double>(saves_));
  stalled_ = 0;
  saves_ = 0;
}

void CheckpointCallback::on_save(TrainerState& state, bool best) {
  const Stopwatch watch(stalled_);
  ++saves_;
  writer_.wait();
  // What it throws ends the run on all ranks.
  on_root(run_.run.comm(), [this] { run_.run.check_claim(); });
  run_.run.strategy().state().check_steps();
  const auto whole = run_.run.strategy().placement().as_saved();
  std::optional<optim::ExponentialAverage::InModel> averaged;
  if (run_.average) averaged.emplace(*run_.average);
  const int64_t step = state.step;
  const SeriesOptions series{.best = best, .limit = limit_};
  writer_.start(
      checkpoint_of_step(folder_, step), share_of(run_),
      {.snapshot = async_,
       .published = [folder = folder_, step, series] { continue_series(folder, step, series); },
       .around = marked_writing(timeline_)});
  if (!async_) writer_.wait();
}

void CheckpointCallback::on_end(const TrainerState&) {
  writer_.wait();
}

}  // namespace lockstep::inline v0
