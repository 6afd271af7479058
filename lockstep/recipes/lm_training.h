// The recipe lm: a decoder that learns to go on with texts, on one or several ranks.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/recipes/lm_data.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep {

// train_recipe() for this one (recipe_run.h). AdamW, without weight decay of norms and biases. The
// loss of a batch is the sum over its targets, divided by what a batch of this data has on average: so
// ranks whose batches have more and fewer targets count as one process would count them.
TrainResult train_lm(Communicator& comm, const TrainConfig& config,
                     const TrainRunOptions& options = {});

LmInput lm_input(const TrainConfig& config);

// What can be said of the tokenizer and the model before there are data. Throws CheckpointError,
// DataError, InvalidArgument.
void check_lm_model(const TrainConfig& config);

// Finds what train_lm() would throw for the data, the tokenizer and the model; counts windows.
RecipeCounts validate_lm_input(const TrainConfig& config);

}  // namespace lockstep
