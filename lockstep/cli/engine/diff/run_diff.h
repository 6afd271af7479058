// The first difference between the metrics of two runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0::engine {

struct RunDifference {
  int64_t step = 0;
  std::string type;     // the record's: "train", "test", ...
  std::string key;      // its values differ; "": the whole record is in one run only
  nlohmann::json a, b;  // the two values; null where there is none
};

struct RunsDiff {
  int64_t records = 0;                 // records that both have
  int64_t different = 0;               // those that differ or are in one run only
  std::optional<RunDifference> first;  // at the earliest step
};

// Matches records by step and type. Values that depend on the machine alone are left out
// (counts_in_diff()). Numbers are equal in the sense of diff_tensors(), other values if they are
// the same JSON.
RunsDiff diff_metrics(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b,
                      double tolerance);

}  // namespace lockstep::inline v0::engine
