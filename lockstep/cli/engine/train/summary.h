// The text for people at the end of a training run.
#pragma once

#include <string>

#include "lockstep/recipes/recipe_run.h"

namespace lockstep::inline v0::engine {

struct TrainSummary {
  const TrainResult& result;
  const TrainConfig& config;
  std::string backend = {};
  bool built_in = false;     // trained on the recipe's built-in data set
  std::string command = {};  // the user's word for lockstep
  bool compares = true;      // `lockstep compare` is built
  std::string devices = {};  // all ranks': "cuda:0, cuda:1"; "": the CPU
};

// Several lines: the results, the files, and what to try next. Pure.
std::string train_summary(const TrainSummary& summary);

}  // namespace lockstep::inline v0::engine
