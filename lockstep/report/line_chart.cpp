#include "lockstep/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/report/svg.h"

namespace lockstep {
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

// Takes what is drawn of the panel. Throws InvalidArgument for a series with different numbers of x
// and y.
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

bool legend_is_below(const ChartPanel& panel) {
  return panel.series.size() > 4;
}

// Where colours come round again, dots tell the lines apart.
std::string stroke_of(const Series& series, size_t i) {
  const char* dashes = series.dashed         ? " stroke-dasharray=\"6 4\""
                       : i >= kSeriesColours ? " stroke-dasharray=\"2 3\""
                                             : "";
  return std::string(" stroke=\"") + series_colour(i) + "\" stroke-width=\"2\"" + dashes;
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

class PanelDrawing {
 public:
  // `x`: what the x axis holds besides the panel's own points.
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
    y_ticks_ = axis_ticks(y.low, y.high, 6);
  }

  std::string str() const {
    std::string out = svg_text((left_ + right_) / 2, top_ - 14, Anchor::kMiddle, panel_.title,
                               " font-weight=\"bold\"");
    const double x_step = x_ticks_[1] - x_ticks_[0], y_step = y_ticks_[1] - y_ticks_[0];
    for (const double tick : y_ticks_) {
      out += svg_grid_line(left_, y_of(tick), right_, y_of(tick));
      out += svg_text(left_ - 8, y_of(tick) + 4, Anchor::kEnd, tick_text(tick, y_step));
    }
    for (const double tick : x_ticks_) {
      out += svg_axis_line(x_of(tick), bottom_, x_of(tick), bottom_ + 5);
      out += svg_text(x_of(tick), bottom_ + 20, Anchor::kMiddle, tick_text(tick, x_step));
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
  double x_of(double x) const {
    return left_ + (x - x_ticks_.front()) / (x_ticks_.back() - x_ticks_.front()) * (right_ - left_);
  }
  double y_of(double y) const {
    return bottom_ -
           (y - y_ticks_.front()) / (y_ticks_.back() - y_ticks_.front()) * (bottom_ - top_);
  }

  std::string line_of(const Series& series, size_t i) const {
    constexpr size_t kMostMarks = 40;
    std::string points, marks;
    for (size_t p = 0; p < series.x.size(); ++p) {
      if (!drawn(series, p)) continue;
      const std::string x = svg_number(x_of(series.x[p])), y = svg_number(y_of(series.y[p]));
      points += (points.empty() ? "" : " ") + x + "," + y;
      // Of a single point there is no line.
      if (series.x.size() == 1 || (series.x.size() <= kMostMarks && !series.dashed)) {
        marks += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"3\" fill=\"" + series_colour(i) +
                 "\"/>\n";
      }
    }
    return "<polyline fill=\"none\"" + stroke_of(series, i) + " points=\"" + points + "\"/>\n" +
           marks;
  }

  // Points between two x, above a y, on the page.
  size_t points_above(double from, double to, double below) const {
    size_t count = 0;
    for (const Series& series : panel_.series) {
      for (size_t i = 0; i < series.x.size(); ++i) {
        if (!drawn(series, i)) continue;
        const double x = x_of(series.x[i]);
        if (x >= from && x <= to && y_of(series.y[i]) < below) ++count;
      }
    }
    return count;
  }

  // In the upper corner where the lines are not, one entry a line; or below the labels.
  std::string legend() const {
    if (panel_.series.size() < 2) return {};
    if (legend_is_below(panel_))
      return legend_below(panel_, options_, origin_, bottom_ + kBottom).svg;
    double width = 0;
    for (const Series& series : panel_.series)
      width = std::max(width, 28 + svg_text_width(series.name) + 8);
    const double end = top_ + 18 * static_cast<double>(panel_.series.size() + 1);
    const bool on_the_right =
        points_above(left_, left_ + width, end) > points_above(right_ - width, right_, end);
    const double x = on_the_right ? right_ - width : left_ + 12;
    return svg_legend(legend_entries(panel_), x, top_ + 4, 0).svg;
  }

  const ChartPanel& panel_;
  const ChartOptions& options_;
  double origin_, left_, right_, top_, bottom_;
  std::vector<double> x_ticks_, y_ticks_;
};

}  // namespace

std::string svg_line_chart(const std::vector<ChartPanel>& panels, const ChartOptions& options) {
  const int title_height = options.title.empty() ? 0 : 30;
  const int width = options.panel_width * static_cast<int>(std::max<size_t>(panels.size(), 1));
  double below = 0;
  for (const ChartPanel& panel : panels) {
    if (legend_is_below(panel)) below = std::max(below, legend_below(panel, options, 0, 0).height);
  }
  const int height = options.panel_height + title_height + static_cast<int>(below);
  std::string out = svg_open(width, height);
  if (!options.title.empty())
    out += svg_text(width / 2.0, 22, Anchor::kMiddle, options.title, " font-size=\"16\"");
  Range x, y;
  if (options.same_x) {
    for (const ChartPanel& panel : panels) take(panel, &x, &y);
  }
  double origin = 0;
  for (const ChartPanel& panel : panels) {
    out += PanelDrawing(panel, origin, title_height, options, x).str();
    origin += options.panel_width;
  }
  return out + "</svg>\n";
}

}  // namespace lockstep
