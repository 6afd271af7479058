// Records of TSV and CSV files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::data {

struct DelimitedRecord {
  int64_t line = 0;  // where it begins, from 1
  std::vector<std::string> cells;
};

// Commas: RFC 4180 with "\n" or "\r\n"; tabs: no quotes, so that a quotation mark is a plain
// character. Empty lines are skipped.
class DelimitedReader {
 public:
  // `text` must outlive the reader.
  DelimitedReader(std::string_view text, char separator, std::string_view name)
      : text_(text), separator_(separator), name_(name) {}

  // The next record. Throws DataError: an open quote, or text after a closing one.
  std::optional<DelimitedRecord> next();

 private:
  bool at_line_end() const;
  void end_line();
  std::string cell();
  std::string quoted_cell();

  std::string_view text_;
  char separator_;
  std::string name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace lockstep::inline v0::data
