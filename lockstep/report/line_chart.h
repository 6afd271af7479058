// Line charts as SVG: a few panels side by side, each with axes, ticks, a legend and several lines.
// Up to four lines have their legend in a corner of the panel that no line crosses, where there is
// one; otherwise it stands below. Lines that coincide take turns along their way. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct Series {
  std::string name;
  std::vector<double>
      x;  // as many as y; points that are not finite are left out, the line goes on after them
  std::vector<double> y;
  bool dashed = false;  // for what is ideal or expected; without marks but for a single point
  std::optional<size_t> colour = {};  // of series_colour(); nothing: its place in the panel
};

struct ChartPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  bool y_from_zero = true;
  bool x_integers = false;            // ticks on whole numbers only
  std::optional<double> y_most = {};  // above which no value can be, and no axis goes: 100 of %
  std::function<std::string(double)> x_tick = {};  // nothing: the number
};

struct ChartOptions {
  std::string title;
  int panel_width = 460;  // pixels
  int panel_height = 340;
  bool same_x = false;  // all panels have one x axis, which holds the points of all
};

// The whole file. Throws InvalidArgument for a series with different numbers of x and y.
std::string svg_line_chart(const std::vector<ChartPanel>& panels, const ChartOptions& options = {});

}  // namespace lockstep
