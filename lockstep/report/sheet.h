// A sheet: rows of figures under titled columns, which one description gives to a terminal, to
// Markdown and to a page. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/report/table.h"

namespace lockstep::inline v0 {

// One text in both languages. Texts are plain: markup in them is escaped.
struct Words {
  std::string en;
  std::string zh;
};
// The same text in both languages, such as a name or a number.
inline Words same_words(const std::string& text) {
  return {text, text};
}

struct SheetColumn {
  Words title;
  Align align = Align::kRight;
};

struct Sheet {
  std::vector<SheetColumn> columns;
  std::vector<std::vector<std::string>> rows;  // as many cells as columns, each a single line
};

// A column's title, and its text for a row.
template <typename Row>
struct Shown {
  Words title;
  std::function<std::string(const Row& row)> cell;
  Align align = Align::kRight;
};

template <typename Row, typename Rows>
Sheet sheet_of(const std::vector<Shown<Row>>& columns, const Rows& rows) {
  Sheet sheet;
  for (const Shown<Row>& column : columns) sheet.columns.push_back({column.title, column.align});
  for (const Row& row : rows) {
    auto& cells = sheet.rows.emplace_back();
    for (const Shown<Row>& column : columns) cells.push_back(column.cell(row));
  }
  return sheet;
}

// HtmlPage::table() writes the third form.
// Throws: InvalidArgument for a row with another number of cells.
std::string text_of(const Sheet& sheet);  // titles in English
std::string markdown_of(const Sheet& sheet);

}  // namespace lockstep::inline v0
