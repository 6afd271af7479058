// Saves a training run as a checkpoint directory, and resumes it from one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/optim/exponential_average.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// The parts of a run. They are referred to, and must outlive their users.
struct TrainingRun {
  ModelOnRanks& run;
  TrainLoop& loop;
  CheckpointFiles files = {};
  std::shared_ptr<optim::ExponentialAverage> average = nullptr;  // averaged_model.h; null: none
};

// Every rank reads the checkpoint and takes its part of it. The steps that follow equal those of
// the uninterrupted run bit for bit. With another number of ranks or another strategy they are
// equal up to rounding and random draws, if the batch over all ranks is the same.
// Collective: all ranks.
// Throws: CheckpointError, also if epochs have another number of steps.
void restore_training(const TrainingRun& run, const std::filesystem::path& path);

// Whether a run in `root` resumes from `last` without being asked: `last` exists, and an earlier
// attempt of the same job wrote it (run_folder.h). All ranks get the same answer.
// Collective: all ranks.
bool goes_on_from_last(Communicator& comm, const std::filesystem::path& root,
                       const std::filesystem::path& last);

// Writes folder/checkpoint-<step> whenever the run should be saved. It keeps the newest `limit` of
// them (0: all), and the targets of the links `best` and `last` (checkpoint_series.h). Add it after
// the metrics' callback, whose file length it records. A log gets "checkpoint_s": how many seconds a save since the
// last one stopped this rank's training, in the mean.
// Throws: on_save() throws Error, before anything is written, if a device has left out a step since
// the last log or save (StrategyState::check_steps()).
class CheckpointCallback final : public TrainCallback {
 public:
  // `async`: training continues while a copy is written. An error of the writing is thrown by the
  // next save, or at the end. `timeline`: gets the writing as a span; may be null.
  CheckpointCallback(TrainingRun run, std::filesystem::path folder, int64_t limit,
                     bool async = false, std::shared_ptr<Timeline> timeline = nullptr);
  void before_log(const TrainerState& state, LogEvent& event) override;
  void on_save(TrainerState& state, bool best) override;
  void on_end(const TrainerState& state) override;

 private:
  TrainingRun run_;
  std::filesystem::path folder_;
  int64_t limit_;
  bool async_;
  std::shared_ptr<Timeline> timeline_;
  CheckpointWriter writer_;
  double stalled_ = 0;  // seconds, of `saves_` saves since the last log
  int64_t saves_ = 0;
};

}  // namespace lockstep::inline v0
