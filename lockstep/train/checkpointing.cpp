#include "lockstep/train/checkpointing.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/core/errors.h"

namespace lockstep {
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

// What rank 0 writes. Collective.
Checkpoint gather_run(const TrainingRun& run) {
  const at::Tensor sums = run.comm.gather(pack_sums(run.trainer), 0);
  Checkpoint checkpoint =
      gather_run_state(run.comm, run.model, run.strategy, run.optimizer, run.scaler, run.files);
  if (run.comm.rank() != 0) return checkpoint;
  checkpoint.ranks.tensors.emplace_back(kSums, sums);
  checkpoint.trainer_json = to_json(run.trainer.state());
  return checkpoint;
}

}  // namespace

void save_training(const TrainingRun& run, const std::filesystem::path& path) {
  const Checkpoint checkpoint = gather_run(run);
  on_root(run.comm, [&] { write_checkpoint(path, checkpoint); });
}

void restore_training(const TrainingRun& run, const std::filesystem::path& path) {
  const Checkpoint checkpoint = read_checkpoint(path);
  const std::string source = path.string();
  const auto state = trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json");
  const auto& sums = of_all_ranks(checkpoint.ranks, kSums, run.comm.size(), source);
  if (sums.size(1) != 4 || sums.scalar_type() != at::kDouble)
    throw CheckpointError(source + ": " + kSums + " is damaged");
  restore_run_state(checkpoint, source, run.comm, run.model, run.strategy, run.optimizer,
                    run.scaler);
  const double* mine = sums.const_data_ptr<double>() + 4 * run.comm.rank();
  run.trainer.since_log() = {mine[0], mine[1]};
  run.trainer.of_epoch() = {mine[2], mine[3]};
  run.trainer.state() = state;
}

CheckpointCallback::CheckpointCallback(TrainingRun run, std::filesystem::path folder, int64_t limit)
    : run_(std::move(run)), folder_(std::move(folder)), limit_(limit) {}

void CheckpointCallback::on_save(TrainerState& state, bool best) {
  const Checkpoint checkpoint = gather_run(run_);
  on_root(run_.comm, [&] {
    write_checkpoint_of_step(folder_, state.step, checkpoint, {.best = best, .limit = limit_});
  });
}

}  // namespace lockstep
