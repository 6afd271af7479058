// What a person reads at the end of a training run.
#pragma once

#include <string>

#include "lockstep/recipes/recipe_run.h"

namespace lockstep::engine {

struct TrainSummary {
  const TrainResult& result;
  const TrainConfig& config;
  std::string backend = {};
  bool built_in = false;     // trained on the recipe's built-in data set
  std::string command = {};  // how the user calls lockstep
  bool compares = true;      // `lockstep compare` is built
  std::string devices = {};  // "cuda:0, cuda:1", of all ranks; "": the CPU
};

// Several lines: how it went, where things are, what to try next. Pure.
std::string train_summary(const TrainSummary& summary);

}  // namespace lockstep::engine
