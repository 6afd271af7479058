// Augmentation for small images: random crops with padding, and mirroring.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/image_dataset.h"

namespace lockstep::data {

struct AugmentOptions {
  int64_t crop_padding = 4;  // moves by up to so many pixels each way; 0: no crop
  bool flip = true;          // mirrors left to right, every second time on average
  int64_t seed = 0;          // must be the same on every rank
};

// How sample `index` is laid down in epoch `epoch`: as torchvision's RandomCrop(side, padding) and
// RandomHorizontalFlip() would, but drawn from (seed, epoch, index) alone. So it does not matter
// which rank or which loader thread draws it, nor where a run was resumed. Pure.
Placement draw_placement(const AugmentOptions& options, int64_t epoch, int64_t index);

// A data set for Loader, which hands it the sampler's epoch: the same images, laid down anew in
// every epoch. With neither crop nor flip it gives what ImageDataset gives. Cheap to copy. All
// methods are const and may be called from any thread.
class AugmentedImages {
 public:
  // Throws InvalidArgument for a padding below 0 or as large as the images.
  AugmentedImages(ImageDataset images, AugmentOptions options);

  int64_t size() const { return images_.size(); }
  const ImageDataset& images() const { return images_; }

  // Throw InvalidArgument for a bad index. Without an epoch: not augmented.
  Batch batch(std::span<const int64_t> indices) const { return images_.batch(indices); }
  Batch batch(std::span<const int64_t> indices, int64_t epoch) const;

 private:
  ImageDataset images_;
  AugmentOptions options_;
};

}  // namespace lockstep::data
