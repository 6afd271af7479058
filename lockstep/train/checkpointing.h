// Saving a training run as a checkpoint directory, and going on from one.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/trainer.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// What belongs to a run. All is referred to and must outlive its users.
struct TrainingRun {
  Communicator& comm;
  torch::nn::Module& model;
  torch::optim::Optimizer& optimizer;
  Trainer& trainer;
};

// Rank 0 writes the run as it stands (checkpoint_directory.h), with every rank's generator and
// sums; the others wait and learn of a failure. Collective. Throws what write_checkpoint() throws
// on rank 0, CheckpointError elsewhere.
void save_training(const TrainingRun& run, const std::filesystem::path& path,
                   const std::string& config_json);

// Every rank reads the checkpoint and stands where the run stood: the steps that follow are bit for
// bit those that would have followed. Collective only in that all ranks must call. Throws
// CheckpointError, also for a run of another number of ranks.
void restore_training(const TrainingRun& run, const std::filesystem::path& path);

// Keeps checkpoints/last, and checkpoints/best when the evaluation is the best so far. Add it after
// the metrics' callback, whose file it records.
class CheckpointCallback final : public TrainCallback {
 public:
  CheckpointCallback(TrainingRun run, RunFolder folder, std::string config_json);
  void on_save(TrainerState& state, bool best) override;

 private:
  TrainingRun run_;
  RunFolder folder_;
  std::string config_json_;
};

}  // namespace lockstep
