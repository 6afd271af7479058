// The recipes that classify images, on one or several ranks: mnist, which is tutorial 000's, and
// cifar.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/model/image_model.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0 {

// train_recipe() for these recipes (recipe_run.h).
TrainResult train_images(Communicator& comm, const TrainConfig& config,
                         const TrainRunOptions& options = {});

// The untrained model of a configuration.
// Throws: InvalidArgument.
ImageModel make_image_model(const TrainConfig& config);

// Throws: InvalidArgument unless config.init_from is "" or has the parameters of the model.
void check_init_from(const TrainConfig& config);

}  // namespace lockstep::inline v0
