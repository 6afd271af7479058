#include "lockstep/bench/rows.h"

#include <algorithm>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/quantile.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::bench {

Shown<Row> figure(const std::string& title, const std::string& name,
                  const std::function<std::string(double)>& text) {
  return {same_words(title), [=](const Row& row) { return text(row.at(name).get<double>()); }};
}

Shown<Row> figure(const std::string& title, const std::string& name, int digits) {
  return figure(title, name, [digits](double value) { return fixed(value, digits); });
}

Shown<Row> word(const std::string& title, const std::string& name) {
  return {same_words(title), [=](const Row& row) { return row.at(name).get<std::string>(); },
          Align::kLeft};
}

Shown<Row> range(const std::string& title, const std::string& name) {
  return {same_words(title), [=](const Row& row) {
            return fixed(row.at(name + "_low").get<double>(), 2) + "-" +
                   fixed(row.at(name + "_high").get<double>(), 2);
          }};
}

void put_ratios(Row& row, const std::string& name, const std::vector<double>& ratios) {
  row[name] = quantile(ratios, 0.5);
  row[name + "_low"] = quantile(ratios, 0);
  row[name + "_high"] = quantile(ratios, 1);
}

Sheet without_repeats(Sheet sheet, size_t cells) {
  for (size_t i = sheet.rows.size(); i-- > 1;) {
    const auto begin = sheet.rows[i].begin(), end = begin + static_cast<ptrdiff_t>(cells);
    if (std::equal(begin, end, sheet.rows[i - 1].begin())) std::fill(begin, end, "");
  }
  return sheet;
}

std::string short_number(double value) {
  return fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::vector<std::string> parse_names(const std::string& option, const std::string& text) {
  std::vector<std::string> names;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    if (item.empty()) throw InvalidArgument(option + " has an empty name; write it as a,b,c");
    if (std::find(names.begin(), names.end(), item) == names.end()) names.push_back(item);
  }
  if (names.empty()) throw InvalidArgument(option + " is empty; give names with commas");
  return names;
}

void check_choice(const std::string& kind, const std::string& name,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), name) != choices.end()) return;
  const std::string near = nearest_name(name, choices);
  throw InvalidArgument("there is no " + kind + " '" + name + "'" +
                        (near.empty() ? "" : "; did you mean '" + near + "'?") + "; choose from " +
                        joined(choices));
}

std::vector<std::string> parse_choices(const std::string& option, const std::string& kind,
                                       const std::string& text,
                                       const std::vector<std::string>& choices) {
  std::vector<std::string> names = parse_names(option, text);
  for (const std::string& name : names) check_choice(kind, name, choices);
  return names;
}

std::vector<int64_t> parse_rank_counts(const std::string& option, const std::string& text) {
  std::vector<int64_t> counts;
  for (const std::string& item : parse_names(option, text)) {
    const auto count = parse_int(item, 1, 1024);
    if (!count)
      throw InvalidArgument(option + " has '" + item +
                            "'; give numbers of ranks from 1 to 1024 with commas, such as 1,2,4");
    counts.push_back(*count);
  }
  return counts;
}

}  // namespace lockstep::inline v0::bench
