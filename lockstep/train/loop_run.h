// run_loop(): runs a TrainLoop from its beginning to its end, with its folder, the checkpoint that
// it resumes from, its callbacks, and the checkpoints that it writes. Trainer and the recipes use
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/exponential_average.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/memory_report.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_plan.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0 {

// The end of a loop. The same on every rank.
struct LoopEnd {
  TrainerState state = {};
  int64_t first_step = 0, first_samples = 0;  // where this call began
  double seconds = 0;                         // of the loop only
  int stopped_by = 0;                   // the signal that stopped it (stop_signals.h); 0: none
  std::vector<RankMemory> memory = {};  // empty where rank 0 has taken a dead one's place
};

// Requires: whatever it refers to outlives the call.
struct LoopRun {
  ModelOnRanks& run;
  TrainTask task;
  // Its output.folder belongs to this job until ModelOnRanks::release(). A job that was started
  // again resumes from the last checkpoint that it has written itself, whatever output.resume says.
  const TrainSpec& spec;
  // average_of_run() of `run` and `spec` (averaged_model.h); null: no average is kept.
  std::shared_ptr<optim::ExponentialAverage> average = nullptr;
  // TrainLoop's.
  std::shared_ptr<TrainerState> state = nullptr;

  // The names of what a former run may have left there. They are moved aside if this run begins
  // anew (run_folder.h).
  std::function<std::vector<std::string>()> former_parts;
  bool tells_of_former = true;   // with a line on stderr
  std::string config_json = {};  // the folder's config.json; "": none
  CheckpointFiles files = {};
  Terminal terminal = {};
  std::string counted = "samples";  // ProgressCallbackOptions'
  std::function<std::string(const Evaluation&)> evaluated = test_accuracy_text;
  std::string layout = {};  // lines before that of the memory; "": none
  // Plans what a step's computation takes (step_plan.h), on all ranks. Empty: the first step counts
  // it.
  std::function<StepPlan()> plan = {};
  std::vector<std::shared_ptr<TrainCallback>> callbacks =
      {};  // further ones, before a step is saved
  // Called when the loop has ended, while ranks that die are still replaced. Empty: nothing.
  std::function<void(const LoopEnd&)> at_end = {};
};

// One of ModelOnRanks::attempts().
// Collective: all ranks.
// Throws: InvalidArgument if another job has the folder; CheckpointError; what the loop throws;
// Error as StrategyState::check_steps(), at the end.
LoopEnd run_loop(LoopRun run);

}  // namespace lockstep::inline v0
