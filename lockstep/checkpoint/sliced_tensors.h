// Named tensors that may be sliced: one rank's part of them, or a whole checkpoint's, in several
// mapped files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/tensor_box.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// A range of the elements of a tensor, or of a box of it.
struct LOCKSTEP_API TensorSlice {
  int64_t begin = 0;   // of the box's elements, in memory order
  at::Tensor values;   // 1-D, contiguous
  TensorBox box = {};  // of the tensor (tensor_box.h)
  int64_t end() const { return begin + values.numel(); }
};

// A tensor of which some slices are here.
struct LOCKSTEP_API SlicedTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;     // in elements, without holes
  std::vector<TensorSlice> slices;  // without overlaps
  // For a box of a larger tensor (box_of()): the larger tensor, whose slices they are.
  struct Larger {
    std::vector<int64_t> sizes, strides;
    TensorBox box;  // the box that `sizes` and `strides` describe
  };
  std::optional<Larger> larger = std::nullopt;

  int64_t numel() const;  // of the whole tensor
  // Whether all elements are there; of the larger tensor, where there is one.
  bool complete() const;

  // Copies the elements from `begin` on into the 1-D contiguous `out`, from whichever slices
  // contain them; reads only these.
  // Throws: InvalidArgument where some are missing.
  void read(int64_t begin, const at::Tensor& out) const { read({}, begin, out); }
  // The same for a box's elements, in stretches of its rows.
  void read(const TensorBox& box, int64_t begin, const at::Tensor& out) const;
  // The tensor: a view where it is one slice. Throws likewise.
  at::Tensor whole() const;
};

// Copying it copies no values.
struct LOCKSTEP_API SlicedTensors {
  std::map<std::string, SlicedTensor, std::less<>> tensors;
  Metadata metadata;

  SlicedTensors() = default;
  // From whole tensors: views, except that tensors with holes or overlaps are copied.
  SlicedTensors(const Safetensors& whole);  // NOLINT(google-explicit-constructor): the same thing

  // The tensor of that name, or nullptr.
  const SlicedTensor* find(std::string_view name) const;
  // All tensors, assembled.
  Safetensors whole() const;
  int64_t bytes() const;  // of the present slices
};

// Reads a checkpoint or a file a part at a time, for ZeroOptions::initial: copies the elements
// [begin, begin + part.numel()) in memory order of the tensor with that name into `part`, 1-D and
// contiguous, converted to its type; reads only these. `parameters`: the parameters to be filled,
// possibly without values.
// Throws: CheckpointError that begins with `source` if a parameter is missing, has another shape,
// or another order in memory; the function does too, for missing slices.
LOCKSTEP_API std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>
stored_parts(SlicedTensors tensors, const NamedTensors& parameters, std::string source);

// Elements of a tensor, or of a box of it, from `begin` on, from 1-D memory of a rank.
LOCKSTEP_API SlicedTensor slice_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t begin,
                                   const at::Tensor& values, TensorBox box = {});
// A box of a tensor, as a tensor of its own: it reads only the requested elements.
// Throws: InvalidArgument for a box out of bounds, or of a tensor that is a box itself.
LOCKSTEP_API SlicedTensor box_of(SlicedTensor tensor, const TensorBox& box);

// Reads `directory`/`stem`.safetensors, or the files that `stem`.safetensors.index.json names
// (slice_index.h); mapped as by read_safetensors(), compared with the checksums in `sums`.
// Throws: a one-line CheckpointError if neither exists, a file is missing or damaged or lacks a
// slice, or the slices of a tensor are incomplete.
LOCKSTEP_API SlicedTensors read_sliced(const std::filesystem::path& directory,
                                       const std::string& stem, const FileSums& sums = {});
// The same for an index of that file name.
LOCKSTEP_API SlicedTensors read_slices(const std::filesystem::path& directory,
                                       const std::string& index, const FileSums& sums = {});

}  // namespace lockstep::inline v0
