// A page in English and Chinese as one HTML file: no network, no other files. Light or dark as the
// reader's system is, readable on a phone; two buttons choose the language, without a script where
// scripts are off. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/sheet.h"

namespace lockstep {

class HtmlPage {
 public:
  explicit HtmlPage(Words title);

  void heading(const Words& words);
  void paragraph(const Words& words);
  // Items of a list, a term and what is said of it.
  void terms(const std::vector<std::pair<Words, Words>>& items);
  // Throws InvalidArgument for a row with another number of cells.
  void table(const Sheet& table);
  // Pictures (SVG, in each language), side by side where there is room.
  void pictures(const std::vector<Words>& svgs);
  // Text in a fixed-width font that opens at a click.
  void folded(const Words& title, const std::string& text);

  std::string str() const;

 private:
  Words title_;
  std::string body_;
};

}  // namespace lockstep
