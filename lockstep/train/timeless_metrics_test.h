// What tests compare of a run's metrics.jsonl.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::inline v0::train_test {

// A line a log or evaluation, without what depends on the clock.
inline std::vector<std::string> metrics_of(const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::ordered_json::parse(line);
    for (const char* timed : {"seconds", "samples_per_s", "eval_runtime", "eval_samples_per_second",
                              "eval_steps_per_second", "straggler_rank", "straggler_host",
                              "straggler_late_s", "straggler_since_step", "checkpoint_s"})
      json.erase(timed);
    lines.push_back(json.dump());
  }
  return lines;
}

}  // namespace lockstep::inline v0::train_test
