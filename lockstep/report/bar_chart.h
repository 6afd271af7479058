// Horizontal bar charts as SVG; each bar is one part or a sum of several. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// One bar, of one part or several.
struct Bar {
  std::string label;          // stands left of the bar
  std::vector<double> parts;  // as many as BarChart::parts; a part that is not above 0 is not drawn
  std::string note;           // stands right of the bar, such as its length
};

// The chart that svg_bar_chart() draws.
struct LOCKSTEP_API BarChart {
  std::string title;
  std::string x_label;
  std::vector<std::string> parts;    // the parts' names; with a single part there is no legend
  std::vector<size_t> colours = {};  // of the parts (series_colour()); empty: the first ones
  std::vector<Bar> bars;             // from the top down
  int width = 480;                   // pixels
  // Labels the x axis at whole numbers; empty: the number itself.
  std::function<std::string(double)> tick = {};
};

// Returns a whole SVG file.
// Throws: InvalidArgument for a bar with another number of parts, or when `colours` and `parts`
// differ in length.
LOCKSTEP_API std::string svg_bar_chart(const BarChart& chart);

}  // namespace lockstep::inline v0
