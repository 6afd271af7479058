#include "lockstep/data/augment.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/split_mix.h"

namespace lockstep::inline v0::data {
namespace {

// Generated data sets draw from the same kind of sequence by (seed, split, index). With the same
// seed, epoch 1 would draw the very numbers that chose the labels, and a model could infer the
// labels from them.
constexpr uint64_t kOwnSequence = 0x6175676d656e7421;  // "augment!"

}  // namespace

Placement draw_placement(const AugmentOptions& options, int64_t epoch, int64_t index) {
  SplitMix random(static_cast<uint64_t>(options.seed) ^ kOwnSequence, static_cast<uint64_t>(epoch),
                  static_cast<uint64_t>(index));
  const auto shift = [&] {
    const auto places = static_cast<size_t>(2 * options.crop_padding + 1);
    return static_cast<int64_t>(random.below(places)) - options.crop_padding;
  };
  Placement placement;
  placement.down = shift();
  placement.right = shift();
  placement.flip = options.flip && random.below(2) == 1;
  return placement;
}

AugmentedImages::AugmentedImages(ImageDataset images, AugmentOptions options)
    : images_(std::move(images)), options_(options) {
  const int64_t side =
      images_.size() == 0 ? 1 : std::min(images_.images().size(2), images_.images().size(3));
  if (options_.crop_padding < 0 || options_.crop_padding >= side) {
    throw InvalidArgument("AugmentedImages: crop_padding is " +
                          std::to_string(options_.crop_padding) + "; use 0 to " +
                          std::to_string(side - 1));
  }
}

Batch AugmentedImages::batch(std::span<const int64_t> indices, int64_t epoch) const {
  if (options_.crop_padding == 0 && !options_.flip) return images_.batch(indices);
  std::vector<Placement> placements;
  placements.reserve(indices.size());
  for (const int64_t index : indices) placements.push_back(draw_placement(options_, epoch, index));
  return images_.batch(indices, placements);
}

}  // namespace lockstep::inline v0::data
