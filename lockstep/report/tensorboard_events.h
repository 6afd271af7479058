// TensorBoard's events as bytes: protobuf messages of tensorboard/compat/proto/event.proto and
// summary.proto. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0::tensorboard {

// The time of an event by the wall clock (seconds since 1970), and its step.
struct When {
  double wall_time = 0;
  int64_t step = 0;
};

// The first event of every file.
std::string version_event(double wall_time);
// Says that a run continues from `when.step`: TensorBoard drops the events of a former process at
// that step and after it.
std::string restart_event(const When& when);

std::string scalar_event(const When& when, std::string_view tag, float scalar);
// `text` is Markdown.
std::string text_event(const When& when, std::string_view tag, std::string_view text);
// `png` is a PNG file of height x width pixels; channels: 1, 3 or 4.
std::string image_event(const When& when, std::string_view tag, std::string_view png,
                        int64_t height, int64_t width, int channels);
// The distribution of values, in TensorBoard's own buckets: limits grow by a tenth from 1e-12 up,
// and are mirrored below zero. Infinite values and NaN are left out.
std::string histogram_event(const When& when, std::string_view tag, std::span<const double> values);

// Encodes 8-bit pixels, row by row, with a pixel's channels together. `pixels` has height x width x
// channels bytes.
std::string png_image(std::span<const uint8_t> pixels, int64_t height, int64_t width, int channels);

}  // namespace lockstep::inline v0::tensorboard
