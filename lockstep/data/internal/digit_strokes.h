// The pen strokes of handwritten digits, for generate_digits().
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

namespace lockstep::inline v0::data {

// In a box of 100 x 100; y grows downwards.
struct StrokePoint {
  float x, y;
};

struct Stroke {
  bool smooth;  // a curve through the points (Catmull-Rom), or straight lines between them
  std::vector<StrokePoint> points;
};

using Glyph = std::vector<Stroke>;

// The ways of writing `digit` (0..9).
std::vector<Glyph> digit_glyphs(int digit);

}  // namespace lockstep::inline v0::data
