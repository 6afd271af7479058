// Line charts as SVG: a few panels side by side, each with axes, ticks, a legend and several lines.
// The legend of up to four lines stands in a corner of the panel that no line crosses, if there is
// one, and otherwise below the panel. Lines that coincide are drawn as alternating dashes. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// One line of a chart.
struct LOCKSTEP_API Series {
  std::string name;
  // As many as y; points that are not finite are left out, and the line continues after them.
  std::vector<double> x;
  std::vector<double> y;
  bool dashed = false;  // for ideal or expected values; has no marks, except for a single point
  std::optional<size_t> colour = {};  // of series_colour(); nullopt: its place in the panel
};

// Lines over common axes.
struct ChartPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  bool y_from_zero = true;
  bool x_integers = false;  // ticks only at whole numbers
  // The largest possible value, which the axis does not exceed: 100 for %.
  std::optional<double> y_most = {};
  std::function<std::string(double)> x_tick = {};  // empty: the number itself
};

// The options of a chart.
struct ChartOptions {
  std::string title;       // above all panels
  int panel_width = 460;   // pixels
  int panel_height = 340;  // pixels
  bool same_x = false;     // all panels share one x axis, which covers the points of all
};

// Returns a whole SVG file.
// Throws: InvalidArgument for a series with different numbers of x and y.
LOCKSTEP_API std::string svg_line_chart(const std::vector<ChartPanel>& panels,
                                        const ChartOptions& options = {});

}  // namespace lockstep::inline v0
