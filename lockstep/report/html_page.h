// A page in English and Chinese as one HTML file that needs no network and no other files. It
// follows the reader's system in being light or dark, and is readable on a phone; two buttons
// choose the language, and work without scripts, too. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/sheet.h"

namespace lockstep::inline v0 {

class HtmlPage {
 public:
  explicit HtmlPage(Words title);

  void heading(const Words& words);
  void paragraph(const Words& words);
  // A list of terms with their explanations.
  void terms(const std::vector<std::pair<Words, Words>>& items);
  // Throws: InvalidArgument for a row with another number of cells than columns.
  void table(const Sheet& table);
  // Pictures (SVG, in each language), side by side if there is room.
  void pictures(const std::vector<Words>& svgs);
  // Text in a fixed-width font, which opens at a click.
  void folded(const Words& title, const std::string& text);

  std::string str() const;

 private:
  Words title_;
  std::string body_;
};

}  // namespace lockstep::inline v0
