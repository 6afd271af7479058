// The findings of `lockstep doctor`: a topic, its state, and the remedy. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::inline v0::cli {

enum class Level { kOk, kWarning, kProblem };
const char* to_string(Level level);  // "ok", "warning", "problem"

struct Finding {
  Level level = Level::kOk;
  std::string topic;  // "interfaces"
  std::string found;  // "eth0 10.0.0.2"
  std::string todo;   // the remedy; "" where none is needed
};

// Formats a line for each finding, with the remedy below it; text wider than `columns` continues on
// further lines.
std::string format_findings(const std::vector<Finding>& findings, size_t columns = SIZE_MAX);
nlohmann::ordered_json json_of(const std::vector<Finding>& findings);
bool any_problem(const std::vector<Finding>& findings);

}  // namespace lockstep::inline v0::cli
