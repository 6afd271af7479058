#include "lockstep/report/sheet.h"

namespace lockstep::inline v0 {
namespace {

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += ' ';
    for (const char c : cell) {
      if (c == '|') line += '\\';
      line += c == '\n' ? ' ' : c;
    }
    line += " |";
  }
  return line + "\n";
}

}  // namespace

std::string text_of(const Sheet& sheet) {
  std::vector<Column> columns;
  for (const SheetColumn& column : sheet.columns)
    columns.push_back({column.title.en, column.align});
  Table table(std::move(columns));
  for (const auto& row : sheet.rows) table.add(row);
  return table.str();
}

std::string markdown_of(const Sheet& sheet) {
  std::vector<std::string> titles;
  std::string rule = "|";
  for (const SheetColumn& column : sheet.columns) {
    titles.push_back(column.title.en);
    rule += column.align == Align::kRight ? "---:|" : "---|";
  }
  std::string text = markdown_row(titles) + rule + "\n";
  for (const auto& row : sheet.rows) text += markdown_row(row);
  return text;
}

}  // namespace lockstep::inline v0
