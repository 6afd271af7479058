// The functions of each recipe that the command calls.
#pragma once

#include <filesystem>

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0 {

struct RecipeActions {
  TrainResult (*train)(Communicator& comm, const TrainConfig& config,
                       const TrainRunOptions& options);
  // Checks the model as far as that is possible without data.
  // Throws: CheckpointError, DataError, InvalidArgument.
  void (*check_model)(const TrainConfig& config);
  // Makes the built-in data set in `directory` if it is missing. Any number of processes may call
  // it at once.
  void (*generate)(const Recipe& recipe, const std::filesystem::path& directory);
  // Throws as train() would for the data.
  RecipeCounts (*validate)(const TrainConfig& config);
};

const RecipeActions& actions_of(const Recipe& recipe);

}  // namespace lockstep::inline v0
