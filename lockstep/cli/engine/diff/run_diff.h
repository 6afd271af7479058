// Where the metrics of two runs part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::engine {

// The objects of a metrics.jsonl.
// Throws: DataError that names the file and the line.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

struct RunDifference {
  int64_t step = 0;
  std::string type;     // of the record: "train", "test", ...
  std::string key;      // whose values differ; "": the whole record is in one run only
  nlohmann::json a, b;  // the two values; null where there is none
};

struct RunsDiff {
  int64_t records = 0;                 // that both have
  int64_t different = 0;               // of them, and those of one run only
  std::optional<RunDifference> first;  // at the earliest step
};

// Records are matched by step and type. What is the machine's alone is left out (counts_in_diff()).
// Numbers are equal as diff_tensors() has it, everything else if it is the same JSON.
RunsDiff diff_metrics(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b,
                      double tolerance);

}  // namespace lockstep::engine
