// What a person reads at the end of a training run.
#pragma once

#include <string>

#include "lockstep/train/mnist_recipe.h"

namespace lockstep::engine {

// Several lines: how it went, where things are, what to try next. `command`: how the user calls
// lockstep. Pure.
std::string train_summary(const TrainResult& result, const TrainConfig& config,
                          const std::string& backend, bool digits, const std::string& command);

}  // namespace lockstep::engine
