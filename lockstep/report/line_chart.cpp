#include "lockstep/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/report/table.h"

namespace lockstep {
namespace {

// Distinguishable by people with colour blindness (Okabe and Ito, 2008).
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73",
                                    "#CC79A7", "#E69F00", "#56B4E9"};
constexpr int kLeft = 68, kRight = 20, kTop = 40, kBottom = 52;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string number(double value) {
  std::string text = fixed(value, 1);
  if (text.size() > 2 && text.compare(text.size() - 2, 2, ".0") == 0) text.resize(text.size() - 2);
  return text;
}

// As many digits as tell neighbouring ticks apart.
std::string tick_text(double value, double step) {
  const int digits =
      step >= 1 ? 0 : std::min(12, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  std::string text = fixed(value, digits);
  return text == "-0" ? "0" : text;
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" +
         more + ">" + escaped(text) + "</text>\n";
}

std::string line_from(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
         "\" y2=\"" + number(y2) + "\" stroke=\"" + colour + "\"/>\n";
}

class PanelDrawing {
 public:
  PanelDrawing(const ChartPanel& panel, double origin, double top, const ChartOptions& options)
      : panel_(panel),
        left_(origin + kLeft),
        right_(origin + options.panel_width - kRight),
        top_(top + kTop),
        bottom_(top + options.panel_height - kBottom) {
    Range x, y;
    if (panel.y_from_zero) y.take(0);
    for (const Series& series : panel.series) {
      if (series.x.size() != series.y.size()) {
        throw InvalidArgument("svg_line_chart: series '" + series.name + "' has " +
                              std::to_string(series.x.size()) + " x and " +
                              std::to_string(series.y.size()) + " y");
      }
      for (size_t i = 0; i < series.x.size(); ++i) {
        if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
        x.take(series.x[i]);
        y.take(series.y[i]);
      }
    }
    if (x.low > x.high) x = {0, 1};
    if (y.low > y.high) y = {0, 1};
    x_ticks_ = axis_ticks(x.low, x.high, 6, panel.x_integers);
    y_ticks_ = axis_ticks(y.low, y.high, 6);
  }

  std::string str() const {
    std::string out =
        text_at((left_ + right_) / 2, top_ - 14, "middle", panel_.title, " font-weight=\"bold\"");
    const double x_step = x_ticks_[1] - x_ticks_[0], y_step = y_ticks_[1] - y_ticks_[0];
    for (const double tick : y_ticks_) {
      out += line_from(left_, y_of(tick), right_, y_of(tick), "#dddddd");
      out += text_at(left_ - 8, y_of(tick) + 4, "end", tick_text(tick, y_step));
    }
    for (const double tick : x_ticks_) {
      out += line_from(x_of(tick), bottom_, x_of(tick), bottom_ + 5, "#333333");
      out += text_at(x_of(tick), bottom_ + 20, "middle", tick_text(tick, x_step));
    }
    out += line_from(left_, bottom_, right_, bottom_, "#333333") +
           line_from(left_, top_, left_, bottom_, "#333333");
    out += text_at((left_ + right_) / 2, bottom_ + 40, "middle", panel_.x_label);
    const std::string turn = " transform=\"rotate(-90 " + number(left_ - 50) + " " +
                             number((top_ + bottom_) / 2) + ")\"";
    out += text_at(left_ - 50, (top_ + bottom_) / 2, "middle", panel_.y_label, turn.c_str());
    for (size_t i = 0; i < panel_.series.size(); ++i)
      out += line_of(panel_.series[i], kColours[i % std::size(kColours)]);
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

  std::string line_of(const Series& series, const char* colour) const {
    constexpr size_t kMostMarks = 40;
    std::string points, marks;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
      const std::string x = number(x_of(series.x[i])), y = number(y_of(series.y[i]));
      points += (points.empty() ? "" : " ") + x + "," + y;
      if (series.x.size() <= kMostMarks && !series.dashed) {
        marks += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"3\" fill=\"" + colour + "\"/>\n";
      }
    }
    return "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" stroke-width=\"2\"" +
           (series.dashed ? " stroke-dasharray=\"6 4\"" : "") + " points=\"" + points + "\"/>\n" +
           marks;
  }

  // Points between two x, above a y, on the page.
  size_t points_above(double from, double to, double below) const {
    size_t count = 0;
    for (const Series& series : panel_.series) {
      for (size_t i = 0; i < series.x.size(); ++i) {
        if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
        const double x = x_of(series.x[i]);
        if (x >= from && x <= to && y_of(series.y[i]) < below) ++count;
      }
    }
    return count;
  }

  // In the upper corner where the lines are not.
  std::string legend() const {
    if (panel_.series.size() < 2) return {};
    constexpr double kWidth = 120;
    const double end = top_ + 18 * static_cast<double>(panel_.series.size() + 1);
    const bool on_the_right =
        points_above(left_, left_ + kWidth, end) > points_above(right_ - kWidth, right_, end);
    const double x = on_the_right ? right_ - kWidth : left_ + 12;
    std::string out;
    for (size_t i = 0; i < panel_.series.size(); ++i) {
      const double y = top_ + 14 + 18 * static_cast<double>(i);
      out += line_from(x, y - 4, x + 22, y - 4, kColours[i % std::size(kColours)]);
      out += text_at(x + 28, y, "start", panel_.series[i].name);
    }
    return out;
  }

  const ChartPanel& panel_;
  double left_, right_, top_, bottom_;
  std::vector<double> x_ticks_, y_ticks_;
};

}  // namespace

std::vector<double> axis_ticks(double low, double high, int count, bool integers) {
  if (!(high > low)) {  // one value: room on both sides of it
    const double room = integers ? 1 : std::max(std::abs(low) * 0.1, 1e-3);
    low -= room;
    high += room;
  }
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power * (rough <= power * 1.0001 ? 1
                         : rough <= power * 2    ? 2
                         : rough <= power * 5    ? 5
                                                 : 10);
  if (integers) step = std::max(1.0, std::round(step));
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  if (ticks.size() < 2) ticks.push_back(ticks.back() + step);
  return ticks;
}

std::string svg_line_chart(const std::vector<ChartPanel>& panels, const ChartOptions& options) {
  const int title_height = options.title.empty() ? 0 : 30;
  const int width = options.panel_width * static_cast<int>(std::max<size_t>(panels.size(), 1));
  const int height = options.panel_height + title_height;
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) +
                    "\" height=\"" + std::to_string(height) + "\" viewBox=\"0 0 " +
                    std::to_string(width) + " " + std::to_string(height) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  if (!options.title.empty())
    out += text_at(width / 2.0, 22, "middle", options.title, " font-size=\"16\"");
  double origin = 0;
  for (const ChartPanel& panel : panels) {
    out += PanelDrawing(panel, origin, title_height, options).str();
    origin += options.panel_width;
  }
  return out + "</svg>\n";
}

}  // namespace lockstep
