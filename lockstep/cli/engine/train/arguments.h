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

namespace lockstep::inline v0::engine {

struct TrainArguments {
  std::string recipe;
  struct Setting {
    std::string field;   // TrainConfig's
    std::string text;    // its value
    std::string option;  // gave it: "--dropout" for dropout1
  };
  std::vector<Setting> settings;  // later ones win
  std::string config_file;
  std::string json;
  std::string record;
  bool resume = false;
  // It resumes because a launcher has started the ranks again with the first arguments.
  bool goes_on = false;
  bool quiet = false;                           // no summary at the end
  std::optional<launch::OnFailure> on_failure;  // for ranks that this command starts
  int max_restarts = 0;
  int spare_ranks = 0;

  bool gives(const std::string& field) const;
};

// Throws: HelpShown, InvalidArgument.
TrainArguments parse_train_arguments(const Arguments& arguments);

// Whether the run's output was left by an earlier attempt of the job that this process is a rank
// of, and has a checkpoint (run_folder.h). The run then continues as with --resume.
// Throws: InvalidArgument.
bool goes_on_by_itself(const TrainArguments& arguments);

struct TrainPlan {
  TrainConfig config;     // resolved
  bool built_in = false;  // the recipe's built-in data set goes to config.data
  // On --resume: the run's first configuration, and the state of its checkpoint. nullopt where the
  // checkpoint does not have it.
  std::optional<TrainConfig> recorded = std::nullopt;
  std::optional<TrainerState> stands = std::nullopt;
  std::string chosen = {};  // of --mesh auto: a line that says what was chosen
};

// The text about a plan to resume a run that has done everything that it is asked for; "" for
// others. Pure.
std::string finished_text(const TrainPlan& plan);

// Makes the configuration from the defaults (on --resume: the run's first configuration), then
// --config, then options. `ranks` is the number that a launcher has started; nullopt: nproc
// decides. The data's path is made absolute. Reads files, and changes nothing.
// Throws: InvalidArgument, CheckpointError.
TrainPlan make_train_plan(const TrainArguments& arguments, std::optional<int> ranks);

// Checks a plan whose ranks, if they die, are replaced one by one (`--on-failure replace`), before
// any starts.
// Throws: InvalidArgument for settings with which a new rank could not take the place of another.
void check_replacement(const TrainPlan& plan, const TrainArguments& arguments);
// The same where the others go on without ranks that die (`--on-failure shrink`).
// Throws: InvalidArgument for settings with which they could not.
void check_shrinking(const TrainPlan& plan, const TrainArguments& arguments);

// Checks data, checkpoints and the output's folder in the file system, and makes the built-in data
// set where it is asked for. Returns the output's folder, which it removes again if nothing is
// written.
// Throws: InvalidArgument, DataError, CheckpointError.
[[nodiscard]] OutputFolder check_train_input(const TrainPlan& plan,
                                             const TrainArguments& arguments);

// Makes the built-in data set if the plan is to train on it. Any number of processes may call it at
// once.
void provide_data(const TrainPlan& plan);

}  // namespace lockstep::inline v0::engine
