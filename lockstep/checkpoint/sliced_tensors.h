// Named tensors that may lie in slices: what one rank has of them, or all that a checkpoint has, in
// several mapped files.
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
#include "lockstep/flat/named_tensors.h"

namespace lockstep {

struct TensorSlice {
  int64_t begin = 0;   // of the box's elements, as they lie in memory
  at::Tensor values;   // 1-D, contiguous
  TensorBox box = {};  // of the tensor (tensor_box.h)
  int64_t end() const { return begin + values.numel(); }
};

struct SlicedTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;     // in elements, without holes
  std::vector<TensorSlice> slices;  // without overlaps
  // Of a box of a larger tensor (box_of()): this one, whose slices they are.
  struct Larger {
    std::vector<int64_t> sizes, strides;
    TensorBox box;  // what `sizes` and `strides` are of
  };
  std::optional<Larger> larger = std::nullopt;

  int64_t numel() const;
  // Every element is there; of the larger tensor, where there is one.
  bool complete() const;

  // Copies the elements from `begin` on, as many as the 1-D contiguous `out` has, whatever slices
  // they lie in; only these are read. Throws InvalidArgument where they are not all there.
  void read(int64_t begin, const at::Tensor& out) const { read({}, begin, out); }
  // The same of a box's elements, in stretches of its rows.
  void read(const TensorBox& box, int64_t begin, const at::Tensor& out) const;
  // The tensor: a view where it lies in one slice. Throws likewise.
  at::Tensor whole() const;
};

// Copying it copies no values.
struct SlicedTensors {
  std::map<std::string, SlicedTensor, std::less<>> tensors;
  Metadata metadata;

  SlicedTensors() = default;
  // Whole ones; views, but for tensors with holes or overlaps, which are copied.
  SlicedTensors(const Safetensors& whole);  // NOLINT(google-explicit-constructor): the same thing

  const SlicedTensor* find(std::string_view name) const;
  // All of them, whole.
  Safetensors whole() const;
  int64_t bytes() const;  // of the slices that are there
};

// What a checkpoint or a file has, a part at a time: of the tensor of that name the elements
// [begin, begin + part.numel()) as they lie in memory into `part`, 1-D and contiguous, converted to its type;
// only these are read. For ZeroOptions::initial. `parameters`: whose they will be, perhaps without values.
// Throws CheckpointError that begins with `source`: a parameter is not there, has another shape, or lies
// in another order in memory; the function does too, for slices that are missing.
std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> stored_parts(
    SlicedTensors tensors, const NamedTensors& parameters, std::string source);

// Elements of a tensor, or of a box of it, from `begin` on, as 1-D memory that a rank has.
SlicedTensor slice_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t begin,
                      const at::Tensor& values, TensorBox box = {});
// Of a tensor a box, as a tensor of its own: it reads what it is asked for, and no more. Throws InvalidArgument for a
// box that is none of it, or of a tensor that is a box itself.
SlicedTensor box_of(SlicedTensor tensor, const TensorBox& box);

// Reads `directory`/`stem`.safetensors, or what `stem`.safetensors.index.json names (slice_index.h);
// mapped as read_safetensors() does, compared with those of `sums` that are known. Throws
// CheckpointError of one line: neither is there; a file is missing or damaged, or lacks a slice; the
// slices do not make up their tensor.
SlicedTensors read_sliced(const std::filesystem::path& directory, const std::string& stem,
                          const FileSums& sums = {});
// The same of an index of that file name.
SlicedTensors read_slices(const std::filesystem::path& directory, const std::string& index,
                          const FileSums& sums = {});

}  // namespace lockstep
