#include "lockstep/data/internal/text_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/internal/delimited.h"
#include "lockstep/data/internal/packed_file.h"

namespace lockstep::inline v0::data {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kTextKeys = {"text", "sentence", "content", "text_a",
                                                       "sentence1"};
constexpr std::array<std::string_view, 2> kPairKeys = {"text_b", "sentence2"};
// In a table's header, beside a text's name.
constexpr std::array<std::string_view, 6> kLabelNames = {"label",    "labels", "class",
                                                         "category", "target", "sentiment"};

bool among(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string_view checked_utf8(std::string_view text, std::string_view name) {
  if (const auto at = malformed_utf8(text)) {
    const auto before = text.substr(0, *at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    refuse_file(name, "line " + std::to_string(line) + " is not UTF-8; convert the file to UTF-8");
  }
  return without_byte_order_mark(text);
}

// The length of a number that JSON does not have, at the beginning of `text`.
size_t no_number(std::string_view text) {
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
    if (text.starts_with(word)) return word.size();
  return 0;
}

// NaN and Infinity, as Python and pandas write them, become null.
std::string with_nulls(std::string_view text) {
  std::string result;
  bool quoted = false;
  while (!text.empty()) {
    const size_t word = quoted ? 0 : no_number(text);
    const bool escaped = quoted && text.size() > 1 && text[0] == '\\';
    if (text[0] == '"') quoted = !quoted;
    const size_t length = word > 0 ? word : escaped ? 2 : 1;
    result += word > 0 ? "null" : text.substr(0, length);
    text.remove_prefix(length);
  }
  return result;
}

// The result is "discarded" if the text is not JSON.
json parse_leniently(std::string_view text) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded())
    value = json::parse(with_nulls(text), nullptr, /*allow_exceptions=*/false);
  return value;
}

// One row of a JSON file.
class JsonRow {
 public:
  JsonRow(const TextRows& rows, int64_t at) : rows_(rows), row_{.at = at} {}

  TextRow read(const json& value) {
    if (value.is_array()) {
      if (value.size() < 2 || value.size() > 3) {
        rows_.refuse(row_.at, "is a list of " + std::to_string(value.size()) +
                                  "; give [text, label] or [text, pair, label]");
      }
      row_.text = text(value.front(), "the text");
      if (value.size() == 3) row_.pair = text(value[1], "the pair");
      label(value.back());
    } else if (value.is_object()) {
      read_object(value);
    } else {
      rows_.refuse(row_.at,
                   "is neither a list nor an object; give [text, label] or {\"text\": ..., "
                   "\"label\": ...}");
    }
    return std::move(row_);
  }

 private:
  void read_object(const json& value) {
    const json* found = find(value, kTextKeys);
    if (found == nullptr) rows_.refuse(row_.at, "has no \"text\" (or \"sentence\", \"content\")");
    row_.text = text(*found, "the text");
    if (const json* pair = find(value, kPairKeys)) row_.pair = text(*pair, "the pair");
    if (const auto given = value.find("label"); given != value.end() && !given->is_null())
      label(*given);
  }
  static const json* find(const json& value, std::span<const std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (const auto found = value.find(key); found != value.end()) return &*found;
    }
    return nullptr;
  }
  std::string text(const json& value, const char* what) const {
    if (!value.is_string()) rows_.refuse(row_.at, std::string("has no string as ") + what);
    return value.get<std::string>();
  }
  void label(const json& value) {
    constexpr double kMost = 1e15;  // whole numbers up to this limit are written as such
    const double number = value.is_number_float() ? value.get<double>() : 0.5;
    const bool whole = std::abs(number) < kMost && number == std::floor(number);
    row_.label_is_number = value.is_number_integer() || whole;
    if (row_.label_is_number) {
      row_.label = whole ? std::to_string(static_cast<int64_t>(number)) : value.dump();
    } else if (value.is_string()) {
      row_.label = value.get<std::string>();
    } else {
      rows_.refuse(row_.at, "has a label that is neither a whole number nor a name");
    }
  }

  const TextRows& rows_;
  TextRow row_;
};

void read_json_lines(std::string_view text, TextRows& rows) {
  int64_t number = 0;
  for (const std::string& line : utf8_lines(text, rows.file)) {
    ++number;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const json value = parse_leniently(line);
    if (value.is_discarded()) rows.refuse(number, "is not JSON; each line is one row");
    rows.rows.push_back(JsonRow(rows, number).read(value));
  }
}

void read_json_array(std::string_view text, TextRows& rows) {
  json value = parse_leniently(text);
  try {
    if (value.is_discarded()) value = json::parse(text);  // the exception says where the error is
  } catch (const json::parse_error& error) {
    const auto before = text.substr(0, error.byte == 0 ? 0 : error.byte - 1);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    refuse_file(rows.file, "line " + std::to_string(line) + " is not JSON (near byte " +
                               std::to_string(error.byte) + "); one object a line goes by .jsonl");
  } catch (const json::exception&) {
    refuse_file(rows.file, "holds a number that is out of range");
  }
  if (!value.is_array()) refuse_file(rows.file, "is not a list of rows");
  rows.array = true;
  for (const json& row : value)
    rows.rows.push_back(JsonRow(rows, static_cast<int64_t>(rows.rows.size())).read(row));
}

// The roles of the columns of a TSV or CSV file; -1: none.
struct Columns {
  int text = -1, pair = -1, label = -1;
  size_t count = 0;
};

// Text and label, or text, pair and label.
Columns columns_in_order(size_t count) {
  const int last = static_cast<int>(count) - 1;
  return {.text = 0, .pair = last == 2 ? 1 : -1, .label = last == 0 ? -1 : last, .count = count};
}

// For comparing a header's cell: without blanks around it, in lower case.
std::string plain_name(const std::string& cell) {
  const size_t begin = cell.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  std::string name = cell.substr(begin, cell.find_last_not_of(' ') - begin + 1);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

std::optional<Columns> header_columns(const std::vector<std::string>& cells) {
  Columns columns{.count = cells.size()};
  for (size_t i = 0; i < cells.size(); ++i) {
    const int column = static_cast<int>(i);
    const std::string name = plain_name(cells[i]);
    if (among(kTextKeys, name) && columns.text < 0) columns.text = column;
    if (among(kPairKeys, name)) columns.pair = column;
    if (among(kLabelNames, name) && columns.label < 0) columns.label = column;
  }
  if (columns.text >= 0) return columns;
  // The text's column has another name: "review,label".
  const bool last_is_label =
      cells.size() >= 2 && cells.size() <= 3 && plain_name(cells.back()) == "label";
  return last_is_label ? std::optional(columns_in_order(cells.size())) : std::nullopt;
}

void read_table(std::string_view text, char separator, TextRows& rows) {
  DelimitedReader reader(text, separator, rows.file);
  std::optional<Columns> columns;
  while (auto record = reader.next()) {
    std::vector<std::string>& cells = record->cells;
    if (!columns) {
      columns = header_columns(cells);
      if (columns) continue;
      if (cells.size() > 3) {
        rows.refuse(record->line, "has " + std::to_string(cells.size()) +
                                      " columns; name them in a first row (text, label), or give "
                                      "text and label, or text, pair and label");
      }
      columns = columns_in_order(cells.size());
    }
    if (cells.size() != columns->count) {
      rows.refuse(record->line, "has " + std::to_string(cells.size()) +
                                    " columns and the rows before "
                                    "it " +
                                    std::to_string(columns->count));
    }
    const auto cell = [&](int column) { return std::move(cells[static_cast<size_t>(column)]); };
    TextRow row{.at = record->line};
    row.text = cell(columns->text);
    if (columns->pair >= 0) row.pair = cell(columns->pair);
    if (columns->label >= 0) row.label = cell(columns->label);
    if (row.label && row.label->empty()) row.label.reset();
    rows.rows.push_back(std::move(row));
  }
}

}  // namespace

void TextRows::refuse(int64_t at, const std::string& what) const {
  refuse_file(file, (array ? "row " + std::to_string(at) + " (from 0) "
                           : "line " + std::to_string(at) + " ") +
                        what);
}

std::string_view without_byte_order_mark(std::string_view text) {
  return text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text;
}

std::vector<std::string> utf8_lines(std::string_view text, std::string_view name) {
  text = checked_utf8(text, name);
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

std::string read_text(const std::filesystem::path& path) {
  std::string text;
  read_unpacked(path, "give a file of texts", [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

TextRows parse_text_rows(std::string_view text, std::string_view ending, std::string name) {
  TextRows rows{.file = std::move(name), .rows = {}};
  text = checked_utf8(text, rows.file);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  const bool objects = begin != std::string_view::npos && text[begin] == '{';
  if (ending == "jsonl" || (ending == "json" && objects)) {
    read_json_lines(text, rows);
  } else if (ending == "json") {
    read_json_array(text, rows);
  } else if (ending == "tsv" || ending == "csv") {
    read_table(text, ending == "tsv" ? '\t' : ',', rows);
  } else if (ending == "txt") {
    int64_t line = 0;
    for (std::string& one : utf8_lines(text, rows.file))
      rows.rows.push_back({.text = std::move(one), .at = ++line});
  } else {
    refuse_file(rows.file, "is no .json, .jsonl, .tsv, .csv or .txt file; give one of these");
  }
  return rows;
}

TextRows read_text_rows(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  if (!ending.empty()) ending.erase(0, 1);
  return parse_text_rows(read_text(path), ending, path.string());
}

}  // namespace lockstep::inline v0::data
