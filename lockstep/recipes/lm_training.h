// The recipe lm: a decoder that learns to continue texts, on one or several ranks.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/lm_data.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0 {

// train_recipe() for this recipe (recipe_run.h), with AdamW. The loss of a batch is the sum over
// its targets, divided by the average number of targets of a batch of this data. Ranks whose
// batches have unequal numbers of targets are thus weighted as one process would weight them.
TrainResult train_lm(Communicator& comm, const TrainConfig& config,
                     const TrainRunOptions& options = {});

LmInput lm_input(const TrainConfig& config);

// Checks the tokenizer and the model as far as that is possible without data.
// Throws: CheckpointError, DataError, InvalidArgument.
void check_lm_model(const TrainConfig& config);

// Throws as train_lm() would for the data, the tokenizer and the model. Counts windows.
RecipeCounts validate_lm_input(const TrainConfig& config);

}  // namespace lockstep::inline v0
