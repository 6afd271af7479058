// Rows of figures, as an experiment's JSON file has them. Pure.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/report/sheet.h"

namespace lockstep::inline v0::bench {

// An object: figures and words by name.
using Row = nlohmann::ordered_json;

// Columns that show a figure or a word.
Shown<Row> figure(const std::string& title, const std::string& name, int digits);
Shown<Row> figure(const std::string& title, const std::string& name,
                  const std::function<std::string(double)>& text);
Shown<Row> word(const std::string& title, const std::string& name);
// A column that shows "0.98-1.02", from `name`_low to `name`_high.
Shown<Row> range(const std::string& title, const std::string& name);

// Sets the ratios of a job to another one, taken round by round: the median as the figure `name`,
// the least as `name`_low and the greatest as `name`_high.
// Requires: a round.
void put_ratios(Row& row, const std::string& name, const std::vector<double>& ratios);

// Empties the first cells of a row where the row above has the same.
Sheet without_repeats(Sheet sheet, size_t cells);

// Three significant digits, whatever the magnitude.
std::string short_number(double value);

// Parses names with commas between them, each once. `option` is for messages.
// Throws: InvalidArgument.
std::vector<std::string> parse_names(const std::string& option, const std::string& text);
// Parses names of `choices`.
// Throws: InvalidArgument: "there is no KIND 'x'; did you mean 'y'?; choose from ...".
std::vector<std::string> parse_choices(const std::string& option, const std::string& kind,
                                       const std::string& text,
                                       const std::vector<std::string>& choices);
void check_choice(const std::string& kind, const std::string& name,
                  const std::vector<std::string>& choices);
// Parses whole numbers with commas between them, 1 to 1024 each.
// Throws: InvalidArgument.
std::vector<int64_t> parse_rank_counts(const std::string& option, const std::string& text);

}  // namespace lockstep::inline v0::bench
