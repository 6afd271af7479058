#include "lockstep/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kLeft = 68, kRight = 20, kTop = 40, kBottom = 52;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool drawn(const Series& series, size_t i) {
  return std::isfinite(series.x[i]) && std::isfinite(series.y[i]);
}

// Extends the ranges by the panel's points that are drawn. Throws InvalidArgument for a series with
// different numbers of x and y.
void take(const ChartPanel& panel, Range* x, Range* y) {
  for (const Series& series : panel.series) {
    if (series.x.size() != series.y.size()) {
      throw InvalidArgument("svg_line_chart: series '" + series.name + "' has " +
                            std::to_string(series.x.size()) + " x and " +
                            std::to_string(series.y.size()) + " y");
    }
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!drawn(series, i)) continue;
      x->take(series.x[i]);
      y->take(series.y[i]);
    }
  }
}

// Lines that coincide are visible in turn, each for this many pixels.
constexpr double kTurn = 10;

// A line's place among those that coincide with it.
struct Turn {
  size_t place = 0;
  size_t of = 1;
};

size_t colour_of(const Series& series, size_t i) {
  return series.colour.value_or(i);
}

// When the colours repeat, dots distinguish the lines.
std::string dashes_of(const Series& series, size_t i, const Turn& turn) {
  const bool dotted = i >= kSeriesColours;
  if (turn.of > 1) {
    const std::string others = svg_number(kTurn * static_cast<double>(turn.of - 1));
    return " stroke-dasharray=\"" + (dotted ? "2 2 2 2 2 " : svg_number(kTurn) + " ") + others +
           "\" stroke-dashoffset=\"" +
           svg_number(kTurn * static_cast<double>((turn.of - turn.place) % turn.of)) + "\"";
  }
  return series.dashed ? " stroke-dasharray=\"6 4\"" : dotted ? " stroke-dasharray=\"2 3\"" : "";
}

std::string stroke_of(const Series& series, size_t i, const Turn& turn = {}) {
  return std::string(" stroke=\"") + series_colour(colour_of(series, i)) + "\" stroke-width=\"2\"" +
         dashes_of(series, i, turn);
}

std::vector<LegendEntry> legend_entries(const ChartPanel& panel) {
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    entries.push_back({panel.series[i].name, "<line x1=\"0\" y1=\"6\" x2=\"22\" y2=\"6\"" +
                                                 stroke_of(panel.series[i], i) + "/>"});
  }
  return entries;
}

Legend legend_below(const ChartPanel& panel, const ChartOptions& options, double left, double top) {
  return svg_legend(legend_entries(panel), left + 12, top, options.panel_width - 24);
}

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool holds(const Point& p) const {
    return p.x >= left && p.x <= right && p.y >= top && p.y <= bottom;
  }
};

// Whether the line between two points enters the box, to within a few pixels.
bool crosses(const Point& from, const Point& to, const Box& box) {
  const double length = std::hypot(to.x - from.x, to.y - from.y);
  const int steps = std::max(1, static_cast<int>(length / 3));
  for (int i = 0; i <= steps; ++i) {
    const double part = static_cast<double>(i) / steps;
    if (box.holds({from.x + part * (to.x - from.x), from.y + part * (to.y - from.y)})) return true;
  }
  return false;
}

// Whether one line hides the other, except for a few points.
bool coincide(const std::vector<Point>& a, const std::vector<Point>& b) {
  if (a.size() != b.size() || a.size() < 2) return false;
  size_t apart = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i].x - b[i].x) > 1 || std::abs(a[i].y - b[i].y) > 1.5) ++apart;
  return 10 * apart <= a.size();
}

class PanelDrawing {
 public:
  // `x`: the range that the x axis covers besides the panel's own points.
  PanelDrawing(const ChartPanel& panel, double origin, double top, const ChartOptions& options,
               Range x)
      : panel_(panel),
        options_(options),
        origin_(origin),
        left_(origin + kLeft),
        right_(origin + options.panel_width - kRight),
        top_(top + kTop),
        bottom_(top + options.panel_height - kBottom) {
    Range y;
    if (panel.y_from_zero) y.take(0);
    take(panel, &x, &y);
    if (x.low > x.high) x = {0, 1};
    if (y.low > y.high) y = {0, 1};
    x_ticks_ = axis_ticks(x.low, x.high, 6, panel.x_integers);
    // The last tick's text is centred at the end of the axis.
    right_ = std::min(right_, origin + options.panel_width - 4 -
                                  svg_text_width(tick_of(x_ticks_.size() - 1)) / 2);
    if (panel.y_most && y.low >= *panel.y_most) y.low = 0.9 * *panel.y_most;
    y_ticks_ = axis_ticks(y.low, y.high, 6);
    while (panel.y_most && y_ticks_.size() > 2 && y_ticks_.back() > *panel.y_most + 1e-9)
      y_ticks_.pop_back();
    for (const Series& series : panel.series) points_.push_back(points_of(series));
    take_turns();
    place_legend();
  }

  // The height of the legend if it stands below the panel.
  double height_below() const { return below_ ? legend_below(panel_, options_, 0, 0).height : 0; }

  std::string str() const {
    std::string out = svg_text((left_ + right_) / 2, top_ - 14, Anchor::kMiddle, panel_.title,
                               " font-weight=\"bold\"");
    const double y_step = y_ticks_[1] - y_ticks_[0];
    for (const double tick : y_ticks_) {
      out += svg_grid_line(left_, y_of(tick), right_, y_of(tick));
      out += svg_text(left_ - 8, y_of(tick) + 4, Anchor::kEnd, tick_text(tick, y_step));
    }
    for (size_t i = 0; i < x_ticks_.size(); ++i) {
      const double x = x_of(x_ticks_[i]);
      out += svg_axis_line(x, bottom_, x, bottom_ + 5);
      out += svg_text(x, bottom_ + 20, Anchor::kMiddle, tick_of(i));
    }
    out +=
        svg_axis_line(left_, bottom_, right_, bottom_) + svg_axis_line(left_, top_, left_, bottom_);
    out += svg_text((left_ + right_) / 2, bottom_ + 40, Anchor::kMiddle, panel_.x_label);
    const std::string turn = " transform=\"rotate(-90 " + svg_number(left_ - 50) + " " +
                             svg_number((top_ + bottom_) / 2) + ")\"";
    out += svg_text(left_ - 50, (top_ + bottom_) / 2, Anchor::kMiddle, panel_.y_label, turn);
    for (size_t i = 0; i < panel_.series.size(); ++i) out += line_of(panel_.series[i], i);
    return out + legend();
  }

 private:
  std::string tick_of(size_t i) const {
    return panel_.x_tick ? panel_.x_tick(x_ticks_[i])
                         : tick_text(x_ticks_[i], x_ticks_[1] - x_ticks_[0]);
  }
  double x_of(double x) const {
    return left_ + (x - x_ticks_.front()) / (x_ticks_.back() - x_ticks_.front()) * (right_ - left_);
  }
  double y_of(double y) const {
    return bottom_ -
           (y - y_ticks_.front()) / (y_ticks_.back() - y_ticks_.front()) * (bottom_ - top_);
  }

  std::vector<Point> points_of(const Series& series) const {
    std::vector<Point> points;
    for (size_t i = 0; i < series.x.size(); ++i)
      if (drawn(series, i)) points.push_back({x_of(series.x[i]), y_of(series.y[i])});
    return points;
  }

  void take_turns() {
    const size_t count = panel_.series.size();
    turns_.resize(count);
    std::vector<size_t> first(count);  // the first line that each one coincides with
    for (size_t i = 0; i < count; ++i) {
      first[i] = i;
      for (size_t k = 0; k < i && first[i] == i; ++k) {
        const bool plain = !panel_.series[i].dashed && !panel_.series[k].dashed;
        if (first[k] == k && plain && coincide(points_[i], points_[k])) first[i] = k;
      }
      turns_[i].place = static_cast<size_t>(
          std::count(first.begin(), first.begin() + static_cast<ptrdiff_t>(i), first[i]));
    }
    for (size_t i = 0; i < count; ++i)
      turns_[i].of = static_cast<size_t>(std::count(first.begin(), first.end(), first[i]));
  }

  std::string line_of(const Series& series, size_t i) const {
    constexpr size_t kMostMarks = 40;
    const Turn& turn = turns_[i];
    // Marks at one place get smaller one after another, so that all are visible.
    const double radius = 3 + 1.5 * static_cast<double>(turn.of - 1 - turn.place);
    std::string points, marks;
    for (const Point& point : points_[i]) {
      const std::string x = svg_number(point.x), y = svg_number(point.y);
      points += (points.empty() ? "" : " ") + x + "," + y;
      // A single point has no line.
      if (series.x.size() == 1 || (series.x.size() <= kMostMarks && !series.dashed)) {
        marks += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"" + svg_number(radius) +
                 "\" fill=\"" + series_colour(colour_of(series, i)) + "\"/>\n";
      }
    }
    return "<polyline fill=\"none\"" + stroke_of(series, i, turn) + " points=\"" + points +
           "\"/>\n" + marks;
  }

  bool is_free(const Box& box) const {
    for (const auto& points : points_) {
      if (points.size() == 1 && box.holds(points[0])) return false;
      for (size_t i = 1; i < points.size(); ++i)
        if (crosses(points[i - 1], points[i], box)) return false;
    }
    return true;
  }

  // Places it in a corner without lines, with one entry per line of text; below the labels if there
  // is no such corner, or if there are many lines.
  void place_legend() {
    constexpr size_t kMostInside = 4;
    if (panel_.series.size() < 2) return;
    below_ = true;
    if (panel_.series.size() > kMostInside) return;
    double width = 0;
    for (const Series& series : panel_.series)
      width = std::max(width, 28 + svg_text_width(series.name) + 8);
    const double height = 18 * static_cast<double>(panel_.series.size());
    for (const double y : {top_ + 4, bottom_ - height - 4}) {
      for (const double x : {left_ + 12, right_ - width}) {
        if (!is_free({x - 6, y - 6, x + width, y + height + 6})) continue;
        below_ = false;
        legend_at_ = {x, y};
        return;
      }
    }
  }

  std::string legend() const {
    if (panel_.series.size() < 2) return {};
    if (below_) return legend_below(panel_, options_, origin_, bottom_ + kBottom).svg;
    return svg_legend(legend_entries(panel_), legend_at_.x, legend_at_.y, 0).svg;
  }

  const ChartPanel& panel_;
  const ChartOptions& options_;
  double origin_, left_, right_, top_, bottom_;
  std::vector<double> x_ticks_, y_ticks_;
  std::vector<std::vector<Point>> points_;  // of each line, on the page
  std::vector<Turn> turns_;
  bool below_ = false;  // the legend's position
  Point legend_at_ = {};
};

}  // namespace

std::string svg_line_chart(const std::vector<ChartPanel>& panels, const ChartOptions& options) {
  const int title_height = options.title.empty() ? 0 : 30;
  const int width = options.panel_width * static_cast<int>(std::max<size_t>(panels.size(), 1));
  Range x, y;
  if (options.same_x) {
    for (const ChartPanel& panel : panels) take(panel, &x, &y);
  }
  std::vector<PanelDrawing> drawings;
  drawings.reserve(panels.size());
  double below = 0;
  for (size_t i = 0; i < panels.size(); ++i) {
    drawings.emplace_back(panels[i],
                          static_cast<double>(options.panel_width) * static_cast<double>(i),
                          title_height, options, x);
    below = std::max(below, drawings.back().height_below());
  }
  const int height = options.panel_height + title_height + static_cast<int>(below);
  std::string out = svg_open(width, height);
  if (!options.title.empty())
    out += svg_text(width / 2.0, 22, Anchor::kMiddle, options.title, " font-size=\"16\"");
  for (const PanelDrawing& drawing : drawings) out += drawing.str();
  return out + "</svg>\n";
}

}  // namespace lockstep::inline v0
