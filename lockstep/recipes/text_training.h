// The recipe text: BERT that puts texts into classes, on one or several ranks.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/text_data.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep {

// train_recipe() for these (recipe_run.h). Its steps are those of tutorial 003's `distributed`, bit
// for bit; but max_steps ends a run and leaves the schedule as it is, so that it can be resumed.
TrainResult train_texts(Communicator& comm, const TrainConfig& config,
                        const TrainRunOptions& options = {});

TextInput text_input(const TrainConfig& config);

// What can be said of the vocabulary and the model before there are data. Throws CheckpointError,
// DataError, InvalidArgument.
void check_text_model(const TrainConfig& config);

// Finds what train_texts() would throw for the data, the vocabulary and the model. Throws DataError,
// CheckpointError, InvalidArgument.
RecipeCounts validate_text_input(const TrainConfig& config);

}  // namespace lockstep
