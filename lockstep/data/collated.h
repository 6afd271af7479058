// A data set made of samples and a function that makes a batch of some of them, like PyTorch's
// collate_fn or transformers' data_collator.
//
//   std::vector<MySample> samples = ...;
//   data::Collated dataset(samples, [](std::span<const MySample> some) { return MyBatch{...}; });
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {

// The type of one sample.
template <typename Samples>
using SampleOf = std::remove_cvref_t<decltype(std::declval<const Samples&>()[0])>;

// The samples of a batch.
// Throws: InvalidArgument, which begins with `name`, for an index outside 0..size()-1, and for no
// indices.
template <typename Samples>
std::vector<SampleOf<Samples>> samples_at(const Samples& samples, std::span<const int64_t> indices,
                                          const std::string& name) {
  using Index = decltype(samples.size());
  if (indices.empty())
    throw InvalidArgument(name + ": a batch of no samples; give at least one index");
  const auto size = static_cast<int64_t>(samples.size());
  std::vector<SampleOf<Samples>> some;
  some.reserve(indices.size());
  for (const int64_t index : indices) {
    if (index < 0 || index >= size) {
      throw InvalidArgument(name + ": index " + std::to_string(index) + " is outside 0.." +
                            std::to_string(size - 1));
    }
    some.push_back(samples[static_cast<Index>(index)]);
  }
  return some;
}

// Samples: any type with size() and operator[] of an index: a std::vector, a TokenizedTexts, a
// class that reads a file. Collate: a function of std::span<const Sample>, never empty, in the
// order of the batch. Both are kept; reading and collating must be possible on several threads at
// once, since both are const here.
template <typename Samples, typename Collate>
class Collated {
 public:
  using Sample = SampleOf<Samples>;

  Collated(Samples samples, Collate collate)
      : samples_(std::move(samples)), collate_(std::move(collate)) {}

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }  // the number of samples

  // Throws InvalidArgument for an index outside 0..size()-1, and for no indices; and the errors of
  // reading and of the function.
  auto batch(std::span<const int64_t> indices) const {
    const std::vector<Sample> some = samples_at(samples_, indices, "Collated");
    return collate_(std::span<const Sample>(some));
  }

  const Samples& samples() const { return samples_; }  // those that it was made of

 private:
  Samples samples_;
  Collate collate_;
};

}  // namespace lockstep::inline v0::data
