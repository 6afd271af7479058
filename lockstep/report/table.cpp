#include "lockstep/report/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0 {
namespace {

std::string two_digits(int64_t value) {
  std::string text = std::to_string(value);
  if (text.size() < 2) text.insert(text.begin(), '0');
  return text;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) {
  if (cells.size() != columns_.size()) {
    throw InvalidArgument("Table::add: " + std::to_string(cells.size()) + " cells for " +
                          std::to_string(columns_.size()) + " columns");
  }
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto put = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string space(widths[c] - display_width(cells[c]), ' ');
      line += c == 0 ? "" : "  ";
      line += columns_[c].align == Align::kRight ? space + cells[c] : cells[c] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  put(titles);
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  put(rule);
  for (const auto& row : rows_) put(row);
  return text;
}

std::string fixed(double value, int digits) {
  char buffer[400];  // the longest finite double in fixed form has 309 digits before the point
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed,
                                 std::clamp(digits, 0, 60));
  return {buffer, end.ptr};
}

std::string percent(double fraction, int digits) {
  return fixed(100 * fraction, digits) + " %";
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return fixed(seconds, 1) + " s";
  if (seconds > 1e9) return "years";
  const auto whole = std::llround(seconds);
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + two_digits(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + two_digits(whole % 3600 / 60) + " min";
}

}  // namespace lockstep::inline v0
