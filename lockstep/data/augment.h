// Augmentation for small images: random crops with padding, and mirroring.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/export.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::inline v0::data {

// How AugmentedImages places images.
struct AugmentOptions {
  int64_t crop_padding = 4;  // shifts of up to this many pixels in each direction; 0: no crop
  bool flip = true;          // mirrors left to right with probability 1/2
  int64_t seed = 0;          // must be the same on every rank
};

// The placement of sample `index` in epoch `epoch`: like torchvision's RandomCrop(side, padding)
// and RandomHorizontalFlip(), but drawn from (seed, epoch, index) alone. It therefore depends
// neither on the rank or loader thread that draws it, nor on where a run was resumed. Pure.
LOCKSTEP_API Placement draw_placement(const AugmentOptions& options, int64_t epoch, int64_t index);

// A data set for Loader, which passes it the sampler's epoch: the same images, placed anew in every
// epoch. With neither crop nor flip it equals ImageDataset. Cheap to copy.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API AugmentedImages {
 public:
  // Throws InvalidArgument for a padding below 0 or as large as the images.
  AugmentedImages(ImageDataset images, AugmentOptions options);

  int64_t size() const { return images_.size(); }         // the number of images
  const ImageDataset& images() const { return images_; }  // those that are placed

  // Throw InvalidArgument for a bad index. Without an epoch: not augmented.
  Batch batch(std::span<const int64_t> indices) const { return images_.batch(indices); }
  Batch batch(std::span<const int64_t> indices, int64_t epoch) const;

 private:
  ImageDataset images_;
  AugmentOptions options_;
};

}  // namespace lockstep::inline v0::data
