// Saving a training run as a checkpoint directory, and going on from one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// What belongs to a run. All is referred to and must outlive its users.
struct TrainingRun {
  ModelOnRanks& run;
  TrainLoop& loop;
  CheckpointFiles files = {};
};

// Every rank reads the checkpoint, keeps what it needs, and stands where the run stood: the steps
// that follow are bit for bit those that would have followed. On another number of ranks, or under
// another strategy, they are so to rounding, but for what is drawn at random, where the batch of
// all ranks is what it was. Collective. Throws CheckpointError, also for epochs of another number
// of steps.
void restore_training(const TrainingRun& run, const std::filesystem::path& path);

// Whether a run in `root` goes on from `last` by itself: it is there, and an earlier attempt of the
// same job has left it (run_folder.h). The same on every rank. Collective.
bool goes_on_from_last(Communicator& comm, const std::filesystem::path& root,
                       const std::filesystem::path& last);

// Writes folder/checkpoint-<step> whenever the run should be saved, and keeps `limit` of them (0:
// all), besides those that the links `best` and `last` in the folder mean (checkpoint_series.h).
// Add it after the metrics' callback, whose file it records.
class CheckpointCallback final : public TrainCallback {
 public:
  // `async`: training goes on while a checkpoint is written, of a copy; what went wrong is thrown
  // when the next is due, or at the end.
  CheckpointCallback(TrainingRun run, std::filesystem::path folder, int64_t limit,
                     bool async = false);
  void on_save(TrainerState& state, bool best) override;
  void on_end(const TrainerState& state) override;

 private:
  TrainingRun run_;
  std::filesystem::path folder_;
  int64_t limit_;
  bool async_;
  CheckpointWriter writer_;
};

}  // namespace lockstep
