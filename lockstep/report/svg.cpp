#include "lockstep/report/svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lockstep/report/table.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0 {
namespace {

// Okabe and Ito, 2008, but for the last: theirs is black, the colour of the text.
constexpr const char* kColours[kSeriesColours] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                  "#E69F00", "#56B4E9", "#7A7A7A"};
constexpr double kColumnWidth = 6.7;  // average, of a 12 pixel font

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return "<line x1=\"" + svg_number(x1) + "\" y1=\"" + svg_number(y1) + "\" x2=\"" +
         svg_number(x2) + "\" y2=\"" + svg_number(y2) + "\" " + std::string(attributes) + "/>\n";
}

}  // namespace

const char* series_colour(size_t i) {
  return kColours[i % kSeriesColours];
}

size_t part_colour(std::string_view part) {
  struct Painted {
    std::string_view part;
    size_t colour;
  };
  // First the parts of time, then those of memory. Forward and backward have the colours of a
  // pipeline's picture, too.
  static constexpr Painted kParts[] = {
      {"data", 3},    {"forward", 5},     {"backward", 1},   {"averaging", 0},  {"waiting", 4},
      {"wait", 4},    {"optimizer", 2},   {"parameters", 0}, {"gradients", 1},  {"state", 2},
      {"buffers", 3}, {"activations", 4}, {"average", 6},    {"temporaries", 5}};
  const auto* const found = std::find_if(std::begin(kParts), std::end(kParts),
                                         [&](const Painted& one) { return one.part == part; });
  return found == std::end(kParts) ? 0 : found->colour;
}

std::string escaped_markup(std::string_view text) {
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
      default: {
        const auto byte = static_cast<unsigned char>(c);
        out += (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f ? '?' : c;
      }
    }
  }
  return out;
}

std::string svg_number(double value) {
  std::string text = fixed(value, 1);
  if (text.size() > 2 && text.compare(text.size() - 2, 2, ".0") == 0) text.resize(text.size() - 2);
  return text;
}

std::string svg_text(double x, double y, Anchor anchor, std::string_view text,
                     std::string_view more) {
  constexpr const char* kNames[] = {"start", "middle", "end"};
  return "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" text-anchor=\"" +
         kNames[static_cast<int>(anchor)] + "\"" + std::string(more) + ">" + escaped_markup(text) +
         "</text>\n";
}

std::string svg_rect(double x, double y, double width, double height, std::string_view colour) {
  return "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
         svg_number(width) + "\" height=\"" + svg_number(height) + "\" fill=\"" +
         std::string(colour) + "\"/>\n";
}

std::string svg_grid_line(double x1, double y1, double x2, double y2) {
  return svg_line(x1, y1, x2, y2, "class=\"grid\" stroke=\"#dddddd\"");
}

std::string svg_axis_line(double x1, double y1, double x2, double y2) {
  return svg_line(x1, y1, x2, y2, "class=\"axis\" stroke=\"#333333\"");
}

std::string svg_open(int width, int height) {
  const std::string w = std::to_string(width), h = std::to_string(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
         "\" viewBox=\"0 0 " + w + " " + h +
         "\" font-family=\"sans-serif\" font-size=\"12\">\n"
         "<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
}

double svg_text_width(std::string_view text) {
  return kColumnWidth * static_cast<double>(display_width(text));
}

Legend svg_legend(const std::vector<LegendEntry>& entries, double x, double y, double width) {
  constexpr double kLine = 18, kMark = 28, kGap = 14;
  Legend legend;
  double at = 0, line = 0;
  for (const LegendEntry& entry : entries) {
    const double taken = kMark + svg_text_width(entry.name);
    if (at > 0 && at + taken > width) {
      at = 0;
      line += kLine;
    }
    legend.svg += "<g transform=\"translate(" + svg_number(x + at) + " " + svg_number(y + line) +
                  ")\">" + entry.mark + svg_text(kMark, 10, Anchor::kStart, entry.name) + "</g>\n";
    at += taken + kGap;
  }
  legend.height = entries.empty() ? 0 : line + kLine;
  return legend;
}

std::vector<double> axis_ticks(double low, double high, int count, bool integers) {
  if (!(high > low)) {  // a single value: adds room on both sides
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

std::string tick_text(double value, double step) {
  const int digits =
      step >= 1 ? 0 : std::min(12, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  std::string text = fixed(value, digits);
  return text == "-0" ? "0" : text;
}

ByteUnit byte_unit(double most) {
  static constexpr ByteUnit kUnits[] = {{"B", 1},
                                        {"KiB", 1024.0},
                                        {"MiB", 1024.0 * 1024},
                                        {"GiB", 1024.0 * 1024 * 1024},
                                        {"TiB", 1024.0 * 1024 * 1024 * 1024}};
  const ByteUnit* unit = std::begin(kUnits);
  while (unit + 1 != std::end(kUnits) && most >= (unit + 1)->bytes) ++unit;
  return *unit;
}

}  // namespace lockstep::inline v0
