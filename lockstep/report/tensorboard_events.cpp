#include "lockstep/report/tensorboard_events.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/report/protobuf_wire.h"

namespace lockstep::inline v0::tensorboard {
namespace {

// Field numbers of the .proto files.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1, kStart = 1;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace histogram {
constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumOfSquares = 5, kLimit = 6, kCount = 7;
}
namespace metadata {
constexpr int kPluginData = 1, kPluginName = 1, kDataClass = 4, kTensorClass = 2;
}
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kStrings = 8, kString = 7;
}
namespace image {
constexpr int kHeight = 1, kWidth = 2, kColorspace = 3, kFile = 4;
}

Message begin_event(const When& when) {
  Message message;
  message.number(event::kWallTime, when.wall_time);
  if (when.step != 0) message.integer(event::kStep, when.step);
  return message;
}

Message begin_value(std::string_view tag) {
  Message message;
  message.bytes(value::kTag, tag);
  return message;
}

std::string summary_event(const When& when, const Message& value) {
  return begin_event(when)
      .message(event::kSummary, Message().message(summary::kValue, value))
      .data();
}

// The upper limits of the buckets, ascending.
std::vector<double> bucket_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  std::vector<double> limits = {-std::numeric_limits<double>::max()};
  for (auto it = positive.rbegin(); it != positive.rend(); ++it) limits.push_back(-*it);
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  limits.push_back(std::numeric_limits<double>::max());
  return limits;
}

void append_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>(static_cast<unsigned char>(value >> shift));
}

void append_png_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_big_endian(out, static_cast<uint32_t>(data.size()));
  std::string checked(type);
  checked += data;
  out += checked;
  append_big_endian(out, static_cast<uint32_t>(crc32_z(
                             0, reinterpret_cast<const Bytef*>(checked.data()), checked.size())));
}

}  // namespace

std::string version_event(double wall_time) {
  return Message()
      .number(event::kWallTime, wall_time)
      .bytes(event::kFileVersion, "brain.Event:2")
      .data();
}

std::string restart_event(const When& when) {
  return begin_event(when)
      .message(event::kSessionLog, Message().integer(session_log::kStatus, session_log::kStart))
      .data();
}

std::string scalar_event(const When& when, std::string_view tag, float scalar) {
  return summary_event(when, begin_value(tag).number(value::kSimpleValue, scalar));
}

std::string text_event(const When& when, std::string_view tag, std::string_view text) {
  const Message strings = Message()
                              .integer(tensor::kDtype, tensor::kString)
                              .message(tensor::kShape, Message())
                              .bytes(tensor::kStrings, text);
  const Message about =
      Message()
          .message(metadata::kPluginData, Message().bytes(metadata::kPluginName, "text"))
          .integer(metadata::kDataClass, metadata::kTensorClass);
  return summary_event(
      when, begin_value(tag).message(value::kTensor, strings).message(value::kMetadata, about));
}

std::string image_event(const When& when, std::string_view tag, std::string_view png,
                        int64_t height, int64_t width, int channels) {
  return summary_event(
      when, begin_value(tag).message(value::kImage, Message()
                                                        .integer(image::kHeight, height)
                                                        .integer(image::kWidth, width)
                                                        .integer(image::kColorspace, channels)
                                                        .bytes(image::kFile, png)));
}

std::string histogram_event(const When& when, std::string_view tag,
                            std::span<const double> values) {
  const std::vector<double> limits = bucket_limits();
  std::vector<double> counts(limits.size());
  double least = std::numeric_limits<double>::infinity(), most = -least;
  double number = 0, sum = 0, squares = 0;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    // A value at a limit belongs to the bucket above.
    const auto bucket = std::upper_bound(limits.begin(), limits.end(), v);
    ++counts[bucket == limits.end() ? limits.size() - 1
                                    : static_cast<size_t>(bucket - limits.begin())];
    least = std::min(least, v);
    most = std::max(most, v);
    ++number;
    sum += v;
    squares += v * v;
  }
  if (number == 0) least = most = 0;
  // The buckets go from the empty one before the first non-empty one to the last non-empty one,
  // because TensorBoard takes a bucket's lower limit from its neighbour.
  size_t first = 0, last = counts.size() - 1;
  while (first + 1 < counts.size() && counts[first + 1] == 0 && counts[first] == 0) ++first;
  while (last > first && counts[last] == 0) --last;
  const size_t length = last - first + 1;
  return summary_event(
      when, begin_value(tag).message(
                value::kHistogram,
                Message()
                    .number(histogram::kMin, least)
                    .number(histogram::kMax, most)
                    .number(histogram::kNum, number)
                    .number(histogram::kSum, sum)
                    .number(histogram::kSumOfSquares, squares)
                    .packed(histogram::kLimit, std::span(limits).subspan(first, length))
                    .packed(histogram::kCount, std::span(counts).subspan(first, length))));
}

std::string png_image(std::span<const uint8_t> pixels, int64_t height, int64_t width,
                      int channels) {
  if (channels != 1 && channels != 3 && channels != 4) {
    throw InvalidArgument("an image has 1, 3 or 4 channels, not " + std::to_string(channels));
  }
  constexpr int64_t kMost = 1 << 16;
  if (height < 1 || width < 1 || height > kMost || width > kMost ||
      static_cast<int64_t>(pixels.size()) != height * width * channels) {
    throw InvalidArgument("an image of " + std::to_string(height) + " x " + std::to_string(width) +
                          " pixels with " + std::to_string(channels) + " channels cannot have " +
                          std::to_string(pixels.size()) + " bytes");
  }
  const auto row = static_cast<size_t>(width * channels);
  std::string rows;
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(pixels.data()) + y * row, row);
  }
  uLongf size = compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  if (compress(reinterpret_cast<Bytef*>(packed.data()), &size,
               reinterpret_cast<const Bytef*>(rows.data()),
               static_cast<uLong>(rows.size())) != Z_OK) {
    throw Error("an image could not be compressed: out of memory");
  }
  packed.resize(size);

  std::string header;
  append_big_endian(header, static_cast<uint32_t>(width));
  append_big_endian(header, static_cast<uint32_t>(height));
  header += static_cast<char>(8);  // 8 bits per channel
  header += static_cast<char>(channels == 1 ? 0 : channels == 3 ? 2 : 6);
  header.append(3, '\0');
  std::string png("\x89PNG\r\n\x1a\n", 8);
  append_png_chunk(png, "IHDR", header);
  append_png_chunk(png, "IDAT", packed);
  append_png_chunk(png, "IEND", {});
  return png;
}

}  // namespace lockstep::inline v0::tensorboard
