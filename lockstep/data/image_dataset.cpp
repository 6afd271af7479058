#include "lockstep/data/image_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace {

double for_channel(const std::vector<double>& values, int64_t channel) {
  return values.size() == 1 ? values[0] : values[static_cast<size_t>(channel)];
}

}  // namespace

ImageDataset::ImageDataset(at::Tensor images, at::Tensor labels, const std::vector<double>& mean,
                           const std::vector<double>& stddev)
    : images_(std::move(images)), labels_(std::move(labels)) {
  const auto ready = [](const at::Tensor& t, at::ScalarType dtype, int64_t dims) {
    return t.defined() && t.scalar_type() == dtype && t.dim() == dims && t.is_contiguous() &&
           t.device().is_cpu();
  };
  if (!ready(images_, at::kByte, 4) || !ready(labels_, at::kLong, 1) ||
      images_.size(0) != labels_.size(0)) {
    throw InvalidArgument(
        "ImageDataset: images must be uint8 [N, C, H, W] and labels int64 [N], contiguous, on the "
        "CPU, of the same N");
  }
  size_ = images_.size(0);
  channels_ = images_.size(1);
  pixels_ = images_.size(2) * images_.size(3);
  const auto fits = [&](size_t n) { return n == 1 || n == static_cast<size_t>(channels_); };
  if (!fits(mean.size()) || !fits(stddev.size())) {
    throw InvalidArgument("ImageDataset: " + std::to_string(mean.size()) + " means and " +
                          std::to_string(stddev.size()) + " standard deviations for " +
                          std::to_string(channels_) +
                          " channels; give one, or one for each channel");
  }
  normalised_.resize(static_cast<size_t>(channels_));
  for (int64_t c = 0; c < channels_; ++c) {
    const auto shift = static_cast<float>(for_channel(mean, c)),
               scale = static_cast<float>(for_channel(stddev, c));
    if (!std::isfinite(shift) || !std::isfinite(scale) || scale == 0.0F) {
      throw InvalidArgument(
          "ImageDataset: channel " + std::to_string(c) +
          " has a mean or standard deviation that is not finite, or a standard deviation of 0");
    }
    for (int value = 0; value < 256; ++value) {
      const float unit = static_cast<float>(value) / 255.0F;
      normalised_[static_cast<size_t>(c)][static_cast<size_t>(value)] = (unit - shift) / scale;
    }
  }
}

Batch ImageDataset::make_batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) {
    if (index < 0 || index >= size_) {
      throw InvalidArgument("ImageDataset::batch: index " + std::to_string(index) +
                            " is outside the " + std::to_string(size_) + " images");
    }
  }
  if (size_ == 0)
    throw InvalidArgument("ImageDataset::batch: the data set has no images (was it loaded?)");
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch{at::empty({count, channels_, images_.size(2), images_.size(3)}, at::kFloat),
              at::empty({count}, at::kLong)};
  const int64_t* labels = labels_.const_data_ptr<int64_t>();
  int64_t* target = batch.target.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) *target++ = labels[index];
  return batch;
}

// Uses a table look-up per pixel and no tensor operations, which would start a team of OpenMP
// threads in each loader thread.
Batch ImageDataset::batch(std::span<const int64_t> indices) const {
  Batch batch = make_batch(indices);
  const uint8_t* images = images_.const_data_ptr<uint8_t>();
  float* out = batch.input.mutable_data_ptr<float>();
  for (const int64_t index : indices) {
    const uint8_t* pixel = images + index * channels_ * pixels_;
    for (const auto& table : normalised_) {
      for (int64_t i = 0; i < pixels_; ++i) *out++ = table[*pixel++];
    }
  }
  return batch;
}

Batch ImageDataset::batch(std::span<const int64_t> indices,
                          std::span<const Placement> placements) const {
  if (placements.size() != indices.size()) {
    throw InvalidArgument("ImageDataset::batch: " + std::to_string(placements.size()) +
                          " placements for " + std::to_string(indices.size()) + " indices");
  }
  Batch batch = make_batch(indices);
  const uint8_t* images = images_.const_data_ptr<uint8_t>();
  float* out = batch.input.mutable_data_ptr<float>();
  const int64_t height = images_.size(2), width = images_.size(3);
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto& [down, right, flip] = placements[i];
    // Columns first..end-1 of a row, counted before mirroring, come from the image.
    const int64_t first = std::clamp<int64_t>(right, 0, width),
                  end = std::clamp<int64_t>(width + right, 0, width);
    const uint8_t* plane = images + indices[i] * channels_ * pixels_;
    for (const auto& table : normalised_) {
      for (int64_t y = 0; y < height; ++y, out += width) {
        const int64_t from = y - down;
        if (from < 0 || from >= height || first >= end) {
          std::fill(out, out + width, table[0]);
          continue;
        }
        const uint8_t* row = plane + from * width;
        if (flip) {
          std::fill(out, out + (width - end), table[0]);
          std::fill(out + (width - first), out + width, table[0]);
          for (int64_t x = first; x < end; ++x) out[width - 1 - x] = table[row[x - right]];
        } else {
          std::fill(out, out + first, table[0]);
          std::fill(out + end, out + width, table[0]);
          for (int64_t x = first; x < end; ++x) out[x] = table[row[x - right]];
        }
      }
      plane += pixels_;
    }
  }
  return batch;
}

}  // namespace lockstep::inline v0::data
