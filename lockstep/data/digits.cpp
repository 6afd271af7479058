// Compiled with -ffp-contract=off: digits.h says why the bytes must not depend on the machine.
#include "lockstep/data/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/digit_strokes.h"
#include "lockstep/data/internal/split_mix.h"

namespace lockstep::inline v0::data {
namespace {

constexpr int kDigitSide = 28;
constexpr int kStepsPerSpan = 6;  // line segments of a curve between two of its points

// Draws a sample.
class Pen : public SplitMix {
 public:
  using SplitMix::SplitMix;
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(next() >> 40) * (1.0F / 16777216.0F));
  }
  // Approximately normal, with standard deviation 1, within +-3.5: the sum of four uniform numbers.
  float bell() {
    const uint64_t bits = next();
    const auto sum = static_cast<float>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                        ((bits >> 32) & 0xffff) + (bits >> 48));
    return (sum - 131070.0F) * (1.0F / 37837.0F);
  }
};

// A wave of period 1 and height 1, made of parabolas.
float wave(float t) {
  const float x = t - std::floor(t) - 0.5F;
  return 8.0F * x - 16.0F * x * (x < 0 ? -x : x);
}

// The distortion of a sample, from box coordinates (100 x 100) to pixels.
class Warp {
 public:
  explicit Warp(Pen& pen) {
    for (Bend* bend : {&bend_x_, &bend_y_}) {
      *bend = {pen.uniform(0.0F, 6.0F), pen.uniform(0.4F, 1.3F), pen.uniform(0.0F, 1.0F)};
    }
    const float half_turn = pen.uniform(-0.12F, 0.12F);  // tan of half the angle: up to 14 degrees
    const float norm = 1.0F / (1.0F + half_turn * half_turn);
    const float cosine = (1.0F - half_turn * half_turn) * norm, sine = 2.0F * half_turn * norm;
    const float height = pen.uniform(0.178F, 0.235F), width = height * pen.uniform(0.75F, 1.10F);
    const float shear = pen.uniform(-0.35F, 0.20F);
    xx_ = cosine * width, xy_ = (shear * cosine - sine) * height;
    yx_ = sine * width, yy_ = (shear * sine + cosine) * height;
    shift_x_ = 14.0F + pen.uniform(-1.9F, 1.9F);
    shift_y_ = 14.0F + pen.uniform(-1.9F, 1.9F);
  }
  StrokePoint operator()(StrokePoint p) const {
    const float x = p.x - 50.0F + bend_x_.height * wave(bend_x_.rate * p.y * 0.01F + bend_x_.phase);
    const float y = p.y - 50.0F + bend_y_.height * wave(bend_y_.rate * p.x * 0.01F + bend_y_.phase);
    return {xx_ * x + xy_ * y + shift_x_, yx_ * x + yy_ * y + shift_y_};
  }

 private:
  struct Bend {
    float height, rate, phase;
  };
  Bend bend_x_, bend_y_;
  float xx_, xy_, yx_, yy_, shift_x_, shift_y_;
};

// The stroke as a chain of points, with its control points shifted.
std::vector<StrokePoint> flatten(const Stroke& stroke, float jitter, Pen& pen) {
  std::vector<StrokePoint> at = stroke.points;
  for (auto& p : at) {
    p.x += jitter * pen.bell();
    p.y += jitter * pen.bell();
  }
  std::vector<StrokePoint> chain;
  const size_t last = at.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    const StrokePoint b = at[i], c = at[i + 1];
    const StrokePoint a = i > 0 ? at[i - 1] : b, d = i + 1 < last ? at[i + 2] : c;
    for (int step = 0; step < kStepsPerSpan; ++step) {
      const float t = static_cast<float>(step) * (1.0F / kStepsPerSpan);
      const auto blend = [&](float p, float q, float r, float s) {
        if (!stroke.smooth) return q + (r - q) * t;
        return 0.5F * (2.0F * q + t * (r - p +
                                       t * (2.0F * p - 5.0F * q + 4.0F * r - s +
                                            t * (3.0F * (q - r) + s - p))));
      };
      chain.push_back({blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)});
    }
  }
  chain.push_back(at[last]);
  return chain;
}

using Canvas = std::array<float, kDigitSide * kDigitSide>;  // ink, 0..1

// Draws a line from a to b, `radius` wide on each side, whose edge fades over 2 * `soft` pixels.
void draw_line(Canvas& canvas, StrokePoint a, StrokePoint b, float radius, float soft, float ink) {
  const float reach = radius + soft, dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
  const auto first = [&](float p, float q) {
    return std::max(0, static_cast<int>(std::floor(std::min(p, q) - reach)));
  };
  const auto end = [&](float p, float q) {
    return std::min(kDigitSide, static_cast<int>(std::floor(std::max(p, q) + reach)) + 1);
  };
  const int x_first = first(a.x, b.x), x_end = end(a.x, b.x), y_end = end(a.y, b.y);
  for (int y = first(a.y, b.y); y < y_end; ++y) {
    for (int x = x_first; x < x_end; ++x) {
      const float px = static_cast<float>(x) + 0.5F - a.x, py = static_cast<float>(y) + 0.5F - a.y;
      float t = length2 > 0 ? (px * dx + py * dy) / length2 : 0.0F;
      t = std::clamp(t, 0.0F, 1.0F);
      const float ex = px - t * dx, ey = py - t * dy, distance2 = ex * ex + ey * ey;
      if (distance2 >= reach * reach) continue;
      const float cover = std::min(1.0F, (reach - std::sqrt(distance2)) / (2.0F * soft)) * ink;
      float& pixel = canvas[static_cast<size_t>(y) * kDigitSide + static_cast<size_t>(x)];
      pixel = std::max(pixel, cover);
    }
  }
}

void draw_chain(Canvas& canvas, const std::vector<StrokePoint>& chain, const Warp& warp,
                float radius, float taper, float soft, float ink) {
  StrokePoint from = warp(chain[0]);
  for (size_t i = 1; i < chain.size(); ++i) {
    const StrokePoint to = warp(chain[i]);
    const float along = static_cast<float>(i) / static_cast<float>(chain.size());
    draw_line(canvas, from, to, radius * (1.0F - taper * along), soft, ink);
    from = to;
  }
}

void draw_sample(const Glyph& glyph, Pen& pen, std::span<uint8_t> pixels) {
  Canvas canvas{};
  const Warp warp(pen);
  const float jitter = pen.uniform(1.0F, 4.5F);
  const float radius = pen.uniform(0.85F, 1.75F), taper = pen.uniform(-0.3F, 0.4F),
              soft = pen.uniform(0.5F, 0.9F);
  const float ink = pen.uniform(0.75F, 1.0F);
  for (const Stroke& stroke : glyph) {
    draw_chain(canvas, flatten(stroke, jitter, pen), warp, radius, taper, soft, ink);
  }
  if (pen.below(5) == 0) {  // a stray stroke, fainter than the digit
    const StrokePoint a{pen.uniform(-10, 110), pen.uniform(-10, 110)};
    const StrokePoint b{a.x + pen.uniform(-40, 40), a.y + pen.uniform(-40, 40)};
    draw_chain(canvas, {a, b}, warp, radius * 0.7F, 0.0F, soft, ink * pen.uniform(0.4F, 0.8F));
  }
  const float noise = pen.uniform(0.0F, 0.10F);
  for (size_t i = 0; i < canvas.size(); ++i) {
    const float value = std::clamp(canvas[i] + noise * pen.bell(), 0.0F, 1.0F);
    // Of 0 or more; the same on every machine.  NOLINTNEXTLINE(bugprone-incorrect-roundings)
    pixels[i] = static_cast<uint8_t>(value * 255.0F + 0.5F);
  }
}

}  // namespace

Digits render_digits(int64_t count, int64_t seed, DigitsSplit split) {
  if (count < 0)
    throw InvalidArgument("render_digits: " + std::to_string(count) + " samples; use 0 or more");
  std::array<std::vector<Glyph>, 10> glyphs;
  for (int digit = 0; digit < 10; ++digit) glyphs[static_cast<size_t>(digit)] = digit_glyphs(digit);
  Digits digits;
  digits.images.resize(static_cast<size_t>(count) * kDigitSide * kDigitSide);
  digits.labels.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < digits.labels.size(); ++i) {
    Pen pen(static_cast<uint64_t>(seed), split == DigitsSplit::kTrain ? 1 : 2, i);
    const size_t digit = pen.below(10);
    const Glyph& glyph = glyphs[digit][pen.below(glyphs[digit].size())];
    draw_sample(
        glyph, pen,
        std::span(digits.images).subspan(i * kDigitSide * kDigitSide, kDigitSide * kDigitSide));
    digits.labels[i] = static_cast<uint8_t>(digit);
  }
  return digits;
}

}  // namespace lockstep::inline v0::data
