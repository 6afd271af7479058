// Tables of text for a terminal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// To which side cells are moved.
enum class Align { kLeft, kRight };

// A column of a table.
struct Column {
  std::string title;
  Align align = Align::kRight;
};

// A table with a header line, a rule and aligned columns; wide (CJK) characters count with their
// display width.
class LOCKSTEP_API Table {
 public:
  explicit Table(std::vector<Column> columns);
  // Adds a row: one cell per column, each a single line.
  // Throws: InvalidArgument for another number of cells.
  void add(std::vector<std::string> cells);
  // All lines, each ended by '\n', without trailing spaces.
  std::string str() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `value` with `digits` digits after the point, and '.' in any locale: fixed(0.5, 2) is "0.50".
LOCKSTEP_API std::string fixed(double value, int digits);
// A percentage: percent(0.98765, 2) is "98.77 %".
LOCKSTEP_API std::string percent(double fraction, int digits);
// A length of time in a readable form: "0.8 s", "12 s", "3 min 20 s", "2 h 05 min".
LOCKSTEP_API std::string duration_text(double seconds);

}  // namespace lockstep::inline v0
