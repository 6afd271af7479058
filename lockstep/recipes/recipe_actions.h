// What the command asks of a recipe, whatever it trains.
#pragma once

#include <filesystem>

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep {

struct RecipeActions {
  TrainResult (*train)(Communicator& comm, const TrainConfig& config,
                       const TrainRunOptions& options);
  // Throws what can be said of the model before there are data: CheckpointError, DataError,
  // InvalidArgument.
  void (*check_model)(const TrainConfig& config);
  // Makes the built-in data set in `directory`, where needed. Any number of processes may call at once.
  void (*generate)(const Recipe& recipe, const std::filesystem::path& directory);
  // Finds what train() would throw for the data.
  RecipeCounts (*validate)(const TrainConfig& config);
};

const RecipeActions& actions_of(const Recipe& recipe);

}  // namespace lockstep
