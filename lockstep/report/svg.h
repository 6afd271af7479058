// The common parts of the pictures: colours, escaping, shapes, axes. Pure.
//
// A picture by itself has light colours. If a page includes it, the page's CSS may repaint the
// elements that have a class: "paper" (the background), "grid", "axis", and text; marks keep their
// colours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

// The number of colours of series_colour(), which starts again after the last one. People with
// colour blindness can distinguish them.
inline constexpr size_t kSeriesColours = 7;
const char* series_colour(size_t i);

// The colour of a part of a step's time or of a rank's memory ("forward", "parameters"): the same
// one in every picture, and different from those of the other parts of the same whole.
size_t part_colour(std::string_view part);

// For SVG and HTML, including attributes: & < > " become entities, control characters become '?'.
std::string escaped_markup(std::string_view text);

// A length for an attribute: one digit after the point, or none if it is 0.
std::string svg_number(double value);

enum class Anchor { kStart, kMiddle, kEnd };
// `more`: further attributes, starting with a space.
std::string svg_text(double x, double y, Anchor anchor, std::string_view text,
                     std::string_view more = "");
std::string svg_rect(double x, double y, double width, double height, std::string_view colour);
std::string svg_grid_line(double x1, double y1, double x2, double y2);
std::string svg_axis_line(double x1, double y1, double x2, double y2);

// "<svg ...>" with its background, in a sans-serif font of 12 pixels. The file ends with
// "</svg>\n".
std::string svg_open(int width, int height);

// The approximate width of a text in that font.
double svg_text_width(std::string_view text);

struct LegendEntry {
  std::string name;
  std::string mark;  // drawn at (0, 0); has room for 22 x 12 to the right and below
};
// The entries in as many lines as `width` requires, from (x, y) down.
struct Legend {
  std::string svg;
  double height = 0;
};
Legend svg_legend(const std::vector<LegendEntry>& entries, double x, double y, double width);

// Round numbers that cover low..high in about `count` equal steps of 1, 2 or 5 times a power of ten
// (only whole numbers if `integers`).
std::vector<double> axis_ticks(double low, double high, int count, bool integers = false);

// The value with enough digits to distinguish ticks that are `step` apart.
std::string tick_text(double value, double step);

// The unit of an axis of bytes, chosen so that its greatest value is easy to read.
struct ByteUnit {
  const char* name;  // "B", "KiB", "MiB", "GiB", "TiB"
  double bytes;
};
ByteUnit byte_unit(double most);

}  // namespace lockstep::inline v0
