#include "lockstep/report/bar_chart.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0 {
namespace {

constexpr double kEdge = 10, kBarHeight = 20, kBarRoom = 30, kTitleRoom = 32, kAxisRoom = 48;

double length_of(double part) {
  return std::isfinite(part) && part > 0 ? part : 0;
}

double length_of(const Bar& bar) {
  double sum = 0;
  for (const double part : bar.parts) sum += length_of(part);
  return sum;
}

std::string coloured_box(const BarChart& chart, size_t part, double x, double y, double width,
                         double height) {
  const size_t colour = chart.colours.empty() ? part : chart.colours[part];
  return svg_rect(x, y, width, height, series_colour(colour));
}

// The positions of the chart's elements, computed from the lengths of the texts.
struct BarLayout {
  double left = 0, right = 0;  // the edges of the area for the bars
  double top = 0, bottom = 0;
  std::vector<double> ticks;
  Legend legend;

  double x_of(double value) const { return left + value / ticks.back() * (right - left); }
};

BarLayout lay_out(const BarChart& chart) {
  BarLayout layout;
  if (!chart.colours.empty() && chart.colours.size() != chart.parts.size()) {
    throw InvalidArgument("svg_bar_chart: " + std::to_string(chart.colours.size()) +
                          " colours for " + std::to_string(chart.parts.size()) + " parts");
  }
  double labels = 0, notes = 0, longest = 0;
  for (const Bar& bar : chart.bars) {
    if (bar.parts.size() != chart.parts.size()) {
      throw InvalidArgument("svg_bar_chart: bar '" + bar.label + "' has " +
                            std::to_string(bar.parts.size()) + " parts for " +
                            std::to_string(chart.parts.size()) + " names");
    }
    labels = std::max(labels, svg_text_width(bar.label));
    notes = std::max(notes, svg_text_width(bar.note));
    longest = std::max(longest, length_of(bar));
  }
  layout.left = kEdge + labels + 8;
  layout.right = std::max(layout.left + 40, chart.width - kEdge - notes - 6);
  const int ticks = std::max(2, static_cast<int>((layout.right - layout.left) / 60));
  layout.ticks =
      axis_ticks(0, longest > 0 ? longest : 1, ticks, /*integers=*/chart.tick != nullptr);
  if (chart.parts.size() > 1) {
    std::vector<LegendEntry> entries;
    for (size_t i = 0; i < chart.parts.size(); ++i)
      entries.push_back({chart.parts[i], coloured_box(chart, i, 6, 0, 16, 12)});
    layout.legend = svg_legend(entries, kEdge, kTitleRoom, chart.width - 2 * kEdge);
  }
  layout.top = kTitleRoom + layout.legend.height + (layout.legend.height > 0 ? 8 : 0);
  layout.bottom = layout.top + kBarRoom * static_cast<double>(chart.bars.size());
  return layout;
}

std::string draw_bar(const BarChart& chart, const Bar& bar, const BarLayout& layout, double y) {
  const double middle = y + kBarHeight / 2 + 4;
  std::string out = svg_text(layout.left - 8, middle, Anchor::kEnd, bar.label);
  double length = 0;
  for (size_t i = 0; i < bar.parts.size(); ++i) {
    const double from = layout.x_of(length);
    length += length_of(bar.parts[i]);
    if (layout.x_of(length) - from > 0.04)
      out += coloured_box(chart, i, from, y, layout.x_of(length) - from, kBarHeight);
  }
  return out + svg_text(layout.x_of(length) + 6, middle, Anchor::kStart, bar.note);
}

}  // namespace

std::string svg_bar_chart(const BarChart& chart) {
  const BarLayout layout = lay_out(chart);
  const double step = layout.ticks[1] - layout.ticks[0];
  std::string out =
      svg_open(chart.width, static_cast<int>(layout.bottom + kAxisRoom)) +
      svg_text(chart.width / 2.0, 20, Anchor::kMiddle, chart.title, " font-weight=\"bold\"") +
      layout.legend.svg;
  for (const double tick : layout.ticks) {
    out += svg_grid_line(layout.x_of(tick), layout.top, layout.x_of(tick), layout.bottom);
    out += svg_text(layout.x_of(tick), layout.bottom + 18, Anchor::kMiddle,
                    chart.tick ? chart.tick(tick) : tick_text(tick, step));
  }
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const double y = layout.top + kBarRoom * static_cast<double>(i) + (kBarRoom - kBarHeight) / 2;
    out += draw_bar(chart, chart.bars[i], layout, y);
  }
  out += svg_axis_line(layout.left, layout.top, layout.left, layout.bottom);
  out += svg_text((layout.left + layout.right) / 2, layout.bottom + 38, Anchor::kMiddle,
                  chart.x_label);
  return out + "</svg>\n";
}

}  // namespace lockstep::inline v0
