#include "lockstep/cli/doctor/findings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {

const char* to_string(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      break;
  }
  return "problem";
}

std::string format_findings(const std::vector<Finding>& findings, size_t columns) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.topic.size());
  const auto padded = [](std::string text, size_t size) {
    text.resize(std::max(size, text.size()), ' ');
    return text;
  };
  std::string text;
  for (const Finding& finding : findings) {
    const size_t at = 9 + width + 2;
    text += padded(to_string(finding.level), 9) + padded(finding.topic, width + 2) +
            wrapped(finding.found, at, at, columns) + "\n";
    if (!finding.todo.empty())
      text += padded("", at) + "-> " + wrapped(finding.todo, at + 3, at + 3, columns) + "\n";
  }
  return text;
}

nlohmann::ordered_json json_of(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", to_string(finding.level)},
                    {"topic", finding.topic},
                    {"found", finding.found},
                    {"todo", finding.todo}});
  }
  return list;
}

bool any_problem(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.level == Level::kProblem; });
}

}  // namespace lockstep::inline v0::cli
