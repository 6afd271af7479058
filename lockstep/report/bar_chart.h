// Horizontal bars as SVG, each of one part or of several that add up. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

struct Bar {
  std::string label;          // left of it
  std::vector<double> parts;  // as many as BarChart::parts; what is not above 0 takes no room
  std::string note;           // right of it, such as its length
};

struct BarChart {
  std::string title;
  std::string x_label;
  std::vector<std::string> parts;    // their names; one: there is no legend
  std::vector<size_t> colours = {};  // of the parts (series_colour()); empty: the first ones
  std::vector<Bar> bars;             // from the top down
  int width = 480;                   // pixels
  std::function<std::string(double)> tick =
      {};  // of the x axis, at whole numbers; nothing: it says the
           // number
};

// The whole file. Throws InvalidArgument for a bar with another number of parts, or
// other colours than parts.
std::string svg_bar_chart(const BarChart& chart);

}  // namespace lockstep
