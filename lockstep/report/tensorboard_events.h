// TensorBoard's events as bytes: protobuf messages of tensorboard/compat/proto/event.proto and
// summary.proto. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::tensorboard {

// When an event was, by the clock on the wall (seconds since 1970), and at which step.
struct When {
  double wall_time = 0;
  int64_t step = 0;
};

// What every file begins with.
std::string version_event(double wall_time);
// Says that a run goes on from `when.step`: what is there from a former process at that step and
// after it is dropped.
std::string restart_event(const When& when);

std::string scalar_event(const When& when, std::string_view tag, float scalar);
// Markdown.
std::string text_event(const When& when, std::string_view tag, std::string_view text);
// A PNG file of so many pixels; channels: 1, 3 or 4.
std::string image_event(const When& when, std::string_view tag, std::string_view png,
                        int64_t height, int64_t width, int channels);
// How values are spread, in TensorBoard's own buckets: limits grow by a tenth from 1e-12 up, and
// mirrored below zero. Values that are infinite or NaN are left out.
std::string histogram_event(const When& when, std::string_view tag, std::span<const double> values);

// 8-bit pixels row by row, channels together. `pixels` has height x width x channels bytes.
std::string png_image(std::span<const uint8_t> pixels, int64_t height, int64_t width, int channels);

}  // namespace lockstep::tensorboard
