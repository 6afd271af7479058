#include "lockstep/gpu_check/row.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace lockstep::inline v0::gpu_check {
namespace {

constexpr const char* kMark = "gpu-check row ";
constexpr std::array<const char*, 3> kOutcomes = {"ok", "failed", "skipped"};

const char* name_of(Outcome outcome) {
  return kOutcomes.at(static_cast<size_t>(outcome));
}

// A cell's text: a table's line ends at its end, and a bar ends a cell.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|')
      result += "\\|";
    else
      result += c == '\n' ? ' ' : c;
  }
  return result;
}

}  // namespace

nlohmann::json to_json(const Row& row) {
  return {{"part", row.part},
          {"check", row.check},
          {"outcome", name_of(row.outcome)},
          {"text", row.text},
          {"figures", row.figures}};
}

std::string to_line(const Row& row) {
  // What a driver says need not be UTF-8.
  return kMark + to_json(row).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Output take_rows(const std::string& text) {
  Output output;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(kMark);
    const auto parsed = at == std::string::npos
                            ? nlohmann::json()
                            : nlohmann::json::parse(line.substr(at + std::string(kMark).size()),
                                                    nullptr, /*allow_exceptions=*/false);
    // One that was cut off by its process's end is no row.
    if (!parsed.is_object()) {
      output.rest += line + "\n";
      continue;
    }
    const auto outcome =
        std::find(kOutcomes.begin(), kOutcomes.end(), parsed.at("outcome").get<std::string>());
    output.rows.push_back({.part = parsed.at("part"),
                           .check = parsed.at("check"),
                           .outcome = static_cast<Outcome>(outcome - kOutcomes.begin()),
                           .text = parsed.at("text"),
                           .figures = parsed.at("figures")});
  }
  return output;
}

std::string last_words(const std::string& text, int lines) {
  std::vector<std::string> said;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) said.push_back(line);
  }
  std::string result;
  const size_t wanted = static_cast<size_t>(lines);
  for (size_t i = said.size() > wanted ? said.size() - wanted : 0; i < said.size(); ++i)
    result += (result.empty() ? "" : " / ") + said[i].substr(0, 300);
  return result;
}

std::string to_table(const std::vector<Row>& rows) {
  std::string table = "| part | check | | result |\n|---|---|---|---|\n";
  std::string part;
  for (const Row& row : rows) {
    const std::string outcome =
        row.outcome == Outcome::kFailed ? "**failed**" : std::string(name_of(row.outcome));
    table += "| " + (row.part == part ? "" : row.part) + " | " + cell(row.check) + " | " + outcome +
             " | " + cell(row.text) + " |\n";
    part = row.part;
  }
  return table;
}

}  // namespace lockstep::inline v0::gpu_check
