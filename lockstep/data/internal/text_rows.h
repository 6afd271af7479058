// The rows of a text classification file, before their labels are checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::data {

struct TextRow {
  std::string text = {};
  std::optional<std::string> pair = {};
  std::optional<std::string> label = {};  // a number's digits, or a name
  bool label_is_number = false;           // marked as a number: not in quotes, in JSON
  int64_t at = 0;                         // line, from 1; of a JSON array the row, from 0
};

struct TextRows {
  std::string file;
  bool array = false;  // `at` counts rows of an array
  std::vector<TextRow> rows;

  // Throws DataError "<file>: line 3 <what>".
  [[noreturn]] void refuse(int64_t at, const std::string& what) const;
};

// Reads a file by its ending: json, jsonl, tsv, csv, txt. Throws DataError.
TextRows read_text_rows(const std::filesystem::path& path);

// The same for bytes in memory; `ending` without its dot. For tests and fuzzers.
TextRows parse_text_rows(std::string_view text, std::string_view ending, std::string name);

// Removes U+FEFF in UTF-8, with which some editors begin a file.
std::string_view without_byte_order_mark(std::string_view text);

// Lines without their ends ("\n" or "\r\n"); an empty last line does not count. Throws DataError
// where `text` is not UTF-8. A byte order mark at the start is removed.
std::vector<std::string> utf8_lines(std::string_view text, std::string_view name);

// The whole file, unpacked if it is gzip. Throws DataError.
std::string read_text(const std::filesystem::path& path);

}  // namespace lockstep::inline v0::data
