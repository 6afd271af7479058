// Runs of recipes by ranks that are threads, and what they write. For this room's tests.
#pragma once

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/recipes/recipe_run.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::recipe_runs_test {

inline TrainResult train(const TrainConfig& config, bool resume = false) {
  TrainResult result;
  std::mutex mutex;
  testing::run_threads(static_cast<int>(config.nproc), [&](Communicator& comm) {
    const auto mine = train_recipe(comm, config, {.resume = resume, .progress = false});
    const std::lock_guard lock(mutex);
    result = mine;
  });
  return result;
}

// The lines of a type ("train", "test") of a run's metrics.
inline std::vector<nlohmann::json> metrics_of(const TrainConfig& config, const std::string& type) {
  std::vector<nlohmann::json> found;
  std::ifstream file(RunFolder{config.output}.metrics());
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    if (json.at("type") == type) found.push_back(std::move(json));
  }
  return found;
}

inline std::vector<double> losses(const TrainConfig& config) {
  std::vector<double> values;
  for (const auto& line : metrics_of(config, "train")) values.push_back(line.at("loss"));
  return values;
}

}  // namespace lockstep::recipe_runs_test
