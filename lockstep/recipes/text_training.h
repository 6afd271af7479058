// The recipe text: a BERT that classifies texts, on one or several ranks.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/text_data.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0 {

// train_recipe() for this recipe (recipe_run.h). Its steps equal those of tutorial 003's
// `distributed` bit for bit, but max_steps does not shorten the schedule, so that the run can be
// resumed.
TrainResult train_texts(Communicator& comm, const TrainConfig& config,
                        const TrainRunOptions& options = {});

TextInput text_input(const TrainConfig& config);

// Checks the vocabulary and the model as far as that is possible without data.
// Throws: CheckpointError, DataError, InvalidArgument.
void check_text_model(const TrainConfig& config);

// Throws as train_texts() would for the data, the vocabulary and the model: DataError,
// CheckpointError, InvalidArgument.
RecipeCounts validate_text_input(const TrainConfig& config);

}  // namespace lockstep::inline v0
