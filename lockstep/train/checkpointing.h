// Saving a training run as a checkpoint directory, and going on from one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// What belongs to a run. All is referred to and must outlive its users.
struct TrainingRun {
  Communicator& comm;
  torch::nn::Module& model;
  Strategy& strategy;
  torch::optim::Optimizer& optimizer;
  TrainLoop& trainer;
  amp::GradScaler* scaler = nullptr;
  CheckpointFiles files = {};
};

// Rank 0 writes the run as it stands (checkpoint_directory.h), with every rank's generator and
// sums; the others wait and learn of a failure. Collective. Throws what write_checkpoint() throws
// on rank 0, CheckpointError elsewhere.
void save_training(const TrainingRun& run, const std::filesystem::path& path);

// Every rank reads the checkpoint and stands where the run stood: the steps that follow are bit for
// bit those that would have followed. Collective only in that all ranks must call. Throws
// CheckpointError, also for a run of another number of ranks.
void restore_training(const TrainingRun& run, const std::filesystem::path& path);

// Writes folder/checkpoint-<step> whenever the run should be saved, and keeps `limit` of them (0:
// all), besides those that the links `best` and `last` in the folder mean (checkpoint_series.h).
// Add it after the metrics' callback, whose file it records.
class CheckpointCallback final : public TrainCallback {
 public:
  CheckpointCallback(TrainingRun run, std::filesystem::path folder, int64_t limit);
  void on_save(TrainerState& state, bool best) override;

 private:
  TrainingRun run_;
  std::filesystem::path folder_;
  int64_t limit_;
};

}  // namespace lockstep
