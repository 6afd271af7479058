#include "lockstep/data/shapes.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/internal/generated_files.h"
#include "lockstep/data/internal/split_mix.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

constexpr int kUnits = 16;  // units per pixel, for positions and sizes
constexpr std::array<const char*, 10> kShapeNames = {
    "disc", "ring",          "square",          "diamond",         "triangle",
    "plus", "level stripes", "upright stripes", "slanted stripes", "checks"};

int range(SplitMix& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<size_t>(high - low) + 1));
}

// Whether the shape of size `r` covers the point (u, v), relative to its centre.
bool covers(int shape, int u, int v, int r) {
  const int a = std::abs(u), b = std::abs(v), far = u * u + v * v;
  const auto stripe = [&](int along) { return ((along % r) + r) % r < r / 2; };
  switch (shape) {
    case 0:
      return far < r * r;
    case 1:
      return far < r * r && 9 * far > 4 * r * r;
    case 2:
      return 8 * std::max(a, b) < 7 * r;
    case 3:
      return 8 * (a + b) < 9 * r;
    case 4:
      return v > -r && 4 * v < 3 * r && 7 * a < 4 * (v + r);
    case 5:
      return (3 * a < r && b < r) || (3 * b < r && a < r);
    case 6:
      return stripe(v);
    case 7:
      return stripe(u);
    case 8:
      return stripe(u + v);
    default:
      return stripe(u) != stripe(v);
  }
}

using Colour = std::array<int, 3>;

Colour any_colour(SplitMix& random) {
  return {range(random, 20, 235), range(random, 20, 235), range(random, 20, 235)};
}

void draw(int shape, SplitMix& random, std::span<uint8_t> planes) {
  constexpr int kSidePixels = static_cast<int>(kCifar10Side), kEnough = 120;
  const Colour ground = any_colour(random);
  Colour ink = any_colour(random);
  const auto contrast = [&] {
    return std::abs(ink[0] - ground[0]) + std::abs(ink[1] - ground[1]) +
           std::abs(ink[2] - ground[2]);
  };
  while (contrast() < kEnough) ink = any_colour(random);
  const bool pattern = shape >= 6;
  const int r =
      pattern ? range(random, 5 * kUnits, 9 * kUnits) : range(random, 6 * kUnits, 12 * kUnits);
  const int x0 = range(random, 11 * kUnits, 21 * kUnits),
            y0 = range(random, 11 * kUnits, 21 * kUnits);
  const int light_x = range(random, -2, 2), light_y = range(random, -2, 2);
  const int noise = range(random, 4, 28);
  for (int y = 0; y < kSidePixels; ++y) {
    for (int x = 0; x < kSidePixels; ++x) {
      const int u = kUnits * x + kUnits / 2 - x0, v = kUnits * y + kUnits / 2 - y0;
      const Colour& colour = covers(shape, u, v, r) ? ink : ground;
      const int light = light_x * (x - kSidePixels / 2) + light_y * (y - kSidePixels / 2);
      for (size_t c = 0; c < 3; ++c) {
        const int value = colour[c] + light + range(random, -noise, noise);
        planes[c * kSidePixels * kSidePixels + static_cast<size_t>(y * kSidePixels + x)] =
            static_cast<uint8_t>(std::clamp(value, 0, 255));
      }
    }
  }
}

}  // namespace

std::vector<uint8_t> render_shapes(int64_t count, int64_t seed, ShapesSplit split) {
  if (count < 0)
    throw InvalidArgument("render_shapes: " + std::to_string(count) + " samples; use 0 or more");
  constexpr auto kBytes = static_cast<size_t>(kCifar10Record);
  std::vector<uint8_t> records(static_cast<size_t>(count) * kBytes);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    SplitMix random(static_cast<uint64_t>(seed), split == ShapesSplit::kTrain ? 1 : 2, i);
    const std::span<uint8_t> record = std::span(records).subspan(i * kBytes, kBytes);
    record[0] = static_cast<uint8_t>(random.below(kShapeNames.size()));
    draw(record[0], random, record.subspan(1));
  }
  return records;
}

bool generate_shapes(const fs::path& directory, const ShapesOptions& options) {
  for (const int64_t count : {options.train, options.test})
    check_generated_count("generate_shapes", count);
  const fs::path train = directory / "train.bin", test = directory / "test.bin";
  const auto has = [](const fs::path& file, int64_t count) {
    std::error_code none;
    return fs::file_size(file, none) == static_cast<uintmax_t>(count * kCifar10Record);
  };
  const auto write = [&](const fs::path& file, int64_t count, ShapesSplit split) {
    const std::vector<uint8_t> records = render_shapes(count, options.seed, split);
    AsideFile aside(file);
    aside.write(records.data(), records.size());
    aside.commit();
  };
  return generate_files(
      directory,
      {.record = "shapes.txt",
       .heading = "Lockstep shapes, version 1\n",
       .options = "train " + std::to_string(options.train) + "\ntest " +
                  std::to_string(options.test) + "\nseed " + std::to_string(options.seed) + "\n",
       .ours = "Lockstep shapes",
       .complete = [&] { return has(train, options.train) && has(test, options.test); },
       .write =
           [&] {
             write(train, options.train, ShapesSplit::kTrain);
             write(test, options.test, ShapesSplit::kTest);
             std::string names;
             for (const char* name : kShapeNames) names += std::string(name) + "\n";
             write_file_aside(directory / "batches.meta.txt", names);
           },
       .foreign =
           [](const std::string& name) {
             return name == "batches.meta.txt" || name.ends_with(".bin") ||
                    name.ends_with(".bin.gz");
           }});
}

}  // namespace lockstep::inline v0::data
