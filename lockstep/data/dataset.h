// The interface of data sets for the loader, and the batch of labelled data sets.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// A data set: `size()` samples, and `batch(indices)` that gathers some of them into one value of
// any type (usually a struct of tensors). batch() is const and may be called from several threads
// at once; it throws InvalidArgument for an index outside 0..size()-1. There is no base class: any
// type of this shape can be loaded.
template <class D>
concept Dataset = requires(const D& dataset, std::span<const int64_t> indices) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  dataset.batch(indices);
};

// A data set whose samples differ from epoch to epoch, such as augmented ones: the loader calls
// batch(indices, epoch) with its sampler's epoch. The rules of batch() apply to this one, too.
template <class D>
concept EpochDataset = Dataset<D> && requires(const D& dataset, std::span<const int64_t> indices,
                                              int64_t epoch) { dataset.batch(indices, epoch); };

// The type of a data set's batches.
template <Dataset D>
using BatchOf = decltype(std::declval<const D&>().batch(std::declval<std::span<const int64_t>>()));

// A batch of inputs with their targets: `auto& [image, label]`. The tensors belong only to the
// batch.
struct LOCKSTEP_API Batch {
  at::Tensor input;
  at::Tensor target;
  // The tensors that a loader copies to a device.
  auto tensors() { return std::tie(input, target); }
};

}  // namespace lockstep::inline v0::data
