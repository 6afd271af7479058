// Row: one thing that was looked at, and what came out. Processes hand rows up to the one that started
// them as lines of their output, so that one which hangs or dies leaves those that it had.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::inline v0::gpu_check {

enum class Outcome {
  kOk,
  kFailed,
  kSkipped,  // it cannot be looked at here; the text says why
};

struct Row {
  std::string part;   // as --only has it
  std::string check;  // what was looked at
  Outcome outcome = Outcome::kOk;
  std::string text;  // what came out, for people
  // The same in numbers, by names with their unit: "ms_per_step", "GB_per_s".
  nlohmann::json figures = nlohmann::json::object();
};

nlohmann::json to_json(const Row& row);

// One line, without its end, that take_rows() knows.
std::string to_line(const Row& row);

// The output of a process: its rows, and the rest.
struct Output {
  std::vector<Row> rows;
  std::string rest;
};
Output take_rows(const std::string& text);

// The last `lines` lines that say something, joined by " / ": what a table has room for.
std::string last_words(const std::string& text, int lines = 2);

// Markdown, a row a row, parts in order; what failed is in bold.
std::string to_table(const std::vector<Row>& rows);

}  // namespace lockstep::inline v0::gpu_check
