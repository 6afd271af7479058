// The arguments of `lockstep train RECIPE`, as a configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/agent.h"
#include "lockstep/recipes/train_config.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::engine {

struct TrainArguments {
  std::string recipe;
  struct Setting {
    std::string field;   // of TrainConfig
    std::string text;    // its value
    std::string option;  // that gave it: "--dropout" for dropout1
  };
  std::vector<Setting> settings;  // later ones win
  std::string config_file;
  std::string json;
  std::string record;
  bool resume = false;
  bool goes_on =
      false;  // resumes since a launcher has started the ranks again, with the words of the first time
  bool quiet = false;                           // no summary at the end
  std::optional<launch::OnFailure> on_failure;  // where this command starts the ranks
  int max_restarts = 0;
  int spare_ranks = 0;

  bool gives(const std::string& field) const;
};

// Throws: HelpShown, InvalidArgument.
TrainArguments parse_train_arguments(const Arguments& arguments);

// Whether the run's output was left by an earlier attempt of the job that this process is a rank
// of, with a checkpoint (run_folder.h): then it is as if --resume had been given.
// Throws: InvalidArgument.
bool goes_on_by_itself(const TrainArguments& arguments);

struct TrainPlan {
  TrainConfig config;     // resolved
  bool built_in = false;  // config.data is where the recipe's built-in data set goes
  // On --resume: what the run was begun with, and where the checkpoint stands; nothing where it
  // does not say.
  std::optional<TrainConfig> recorded = std::nullopt;
  std::optional<TrainerState> stands = std::nullopt;
};

// What to say of a plan to resume a run that has done all that it is asked for; "" of others. Pure.
std::string finished_text(const TrainPlan& plan);

// The configuration: the defaults (on --resume: what the run was begun with), then --config, then
// options. `ranks`: how many a launcher has started; nullopt: nproc decides. The data's path is
// made absolute. Reads files, changes nothing.
// Throws: InvalidArgument, CheckpointError.
TrainPlan make_train_plan(const TrainArguments& arguments, std::optional<int> ranks);

// Checks what only the file system can tell: data, checkpoints, where output goes; makes the
// built-in data set where it is asked for. Gives the output's folder, which goes again if nothing
// is written.
// Throws: InvalidArgument, DataError, CheckpointError.
[[nodiscard]] OutputFolder check_train_input(const TrainPlan& plan,
                                             const TrainArguments& arguments);

// Makes the built-in data set if the plan is to train on it. Any number of processes may call at
// once.
void provide_data(const TrainPlan& plan);

}  // namespace lockstep::engine
