// What a data set is to the loader, and the batch that labelled data sets give.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

namespace lockstep::data {

// A data set: `size()` samples, and `batch(indices)` that gathers some of them into one value of
// any type (a struct of tensors, as a rule). batch() is const and may be called from several
// threads at once; it throws InvalidArgument for an index outside 0..size()-1. There is no base
// class: any type of this shape can be loaded.
template <class D>
concept Dataset = requires(const D& dataset, std::span<const int64_t> indices) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  dataset.batch(indices);
};

// A data set whose samples differ from epoch to epoch, as augmented ones do: the loader calls
// batch(indices, epoch) with its sampler's epoch. Everything said of batch() holds for this one.
template <class D>
concept EpochDataset = Dataset<D> && requires(const D& dataset, std::span<const int64_t> indices,
                                              int64_t epoch) { dataset.batch(indices, epoch); };

template <Dataset D>
using BatchOf = decltype(std::declval<const D&>().batch(std::declval<std::span<const int64_t>>()));

// A batch of inputs with their targets: `auto& [image, label]`. The tensors belong to the batch
// alone.
struct Batch {
  at::Tensor input;
  at::Tensor target;
  auto tensors() { return std::tie(input, target); }  // what a loader brings to a device
};

}  // namespace lockstep::data
