// run_loop(): a TrainLoop from where it begins to its end: its folder, the checkpoint that it goes
// on from, what watches it, and the checkpoints that it leaves. Trainer and the recipes run by it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/report/terminal.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {

// How a loop ended; but for the memory the same on every rank.
struct LoopEnd {
  TrainerState state = {};
  int64_t first_step = 0, first_samples = 0;  // where this call began
  double seconds = 0;                         // of the loop alone
  int stopped_by = 0;  // the signal that ended it before its end (stop_signals.h); 0: none did
  StepMemory planned = {}, counted = {};  // rank 0's; zeros on the others
};

// All that is referred to must outlive the call.
struct LoopRun {
  ModelOnRanks& run;
  TrainTask task;
  // Its output.folder is this job's alone, until ModelOnRanks::release(). A job that was started
  // again continues from the last checkpoint that it has left itself, whatever output.resume says.
  const TrainSpec& spec;
  // Where the loop keeps where it stands (TrainLoop); null: within it.
  std::shared_ptr<TrainerState> state = nullptr;

  // What a former run may have left there (names): moved aside where this one begins anew
  // (run_folder.h).
  std::function<std::vector<std::string>()> former_parts;
  bool tells_of_former = true;   // by a line on stderr
  std::string config_json = {};  // the folder's config.json; "": none
  CheckpointFiles files = {};
  Terminal terminal = {};
  std::string counted = "samples";  // ProgressCallbackOptions'
  std::function<std::string(const Evaluation&)> evaluated = test_accuracy_text;
  std::string layout = {};  // a line before that of the memory; "": none
  // Plans a forward's activations (activation_plan.h), on all ranks; empty: they are counted in the
  // first step.
  std::function<int64_t()> activations = {};
  std::vector<std::shared_ptr<TrainCallback>> callbacks =
      {};  // further ones, before a step is saved
  // Called while ranks that die are still replaced, once the loop has ended. Empty: nothing.
  std::function<void(const LoopEnd&)> at_end = {};
};

// One of ModelOnRanks::attempts(). Collective. Throws InvalidArgument where the folder is another
// job's, CheckpointError, what the loop throws.
LoopEnd run_loop(LoopRun run);

}  // namespace lockstep
