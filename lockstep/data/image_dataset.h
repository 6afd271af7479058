// Labelled images of one size in memory: MNIST, Fashion-MNIST, CIFAR-10.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/dataset.h"

namespace lockstep::inline v0::data {

// The placement of an image: moved by whole pixels, with 0 shifted in before normalisation, then
// mirrored left to right if `flip`.
struct Placement {
  int64_t down = 0;   // pixels; may be negative
  int64_t right = 0;  // the same
  bool flip = false;
  bool operator==(const Placement&) const = default;
};

// Cheap to copy: copies share the tensors.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API ImageDataset {
 public:
  // No images.
  ImageDataset() = default;

  // `images` uint8 [N, C, H, W] and `labels` int64 [N], both contiguous on the CPU; they are kept,
  // not copied, so the caller must not write to them any more. `mean` and `stddev` have one value
  // for each channel, or one for all of them.
  // Throws: InvalidArgument.
  ImageDataset(at::Tensor images, at::Tensor labels, const std::vector<double>& mean,
               const std::vector<double>& stddev);

  int64_t size() const { return size_; }  // the number of images

  // input float32 [B, C, H, W], target int64 [B]. A pixel x becomes (x / 255 - mean) / stddev, each
  // operation rounded to float32: bit for bit what torchvision's ToTensor and Normalize give.
  // Throws: InvalidArgument for a bad index.
  Batch batch(std::span<const int64_t> indices) const;
  // The same with the image of indices[i] placed by placements[i].
  // Throws: InvalidArgument also where the two differ in length.
  Batch batch(std::span<const int64_t> indices, std::span<const Placement> placements) const;

  // As stored: uint8 [N, C, H, W] and int64 [N]; undefined tensors when the set is empty.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& labels() const { return labels_; }  // of the images

 private:
  // Empty, with the labels of `indices`.
  Batch make_batch(std::span<const int64_t> indices) const;

  at::Tensor images_, labels_;
  int64_t size_ = 0, channels_ = 0, pixels_ = 0;    // pixels of one channel
  std::vector<std::array<float, 256>> normalised_;  // by channel, by pixel value
};

}  // namespace lockstep::inline v0::data
