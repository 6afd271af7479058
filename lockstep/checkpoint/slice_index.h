// The index of sliced tensors in several safetensors files, as data. Pure.
//
//   {"metadata": {"optimizer": "AdamW", ...},
//    "tensors": {"0.exp_avg": {"dtype": "F32", "shape": [768, 768],
//                              "slices": [{"file": "optimizer-00001-of-00002.safetensors",
//                                          "begin": 0, "end": 294912}, ...]}, ...}}
//
// A slice is a range of the tensor's elements in memory order: row by row or, where there are
// "strides" (in elements, without holes), in their order. For a tensor that is divided along its
// dims it is a range of a box's elements, in the same order (tensor_box.h), with the box: "box":
// "0:768,0:384". The file has the slice under the tensor's name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/tensor_box.h"

namespace lockstep::inline v0 {

struct IndexedSlice {
  std::string file;  // in the index's own directory
  int64_t begin = 0;
  int64_t end = 0;
  TensorBox box = {};  // whole: the range is one of the tensor
  friend bool operator==(const IndexedSlice&, const IndexedSlice&) = default;
};

struct IndexedTensor {
  std::string dtype;  // safetensors' name
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;      // one per dim
  std::vector<IndexedSlice> slices;  // ordered by `box` and `begin`
  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

struct SliceIndex {
  std::map<std::string, IndexedTensor> tensors;
  std::map<std::string, std::string> metadata;
  friend bool operator==(const SliceIndex&, const SliceIndex&) = default;
};

// Adds the slices of `part`.
// Throws: CheckpointError that begins with `source` where both have a tensor, but with another
// shape, dtype or order.
void add_slices(SliceIndex& index, const SliceIndex& part, const std::string& source);

// Throws a one-line CheckpointError that begins with `source` and names the tensor, unless the
// slices of each tensor are complete: every element once, in boxes that form a grid.
void check_whole(const SliceIndex& index, const std::string& source);

// Equal input gives equal text.
std::string format_slice_index(const SliceIndex& index);
// Takes memory in proportion to `json`.
// Throws: a one-line CheckpointError that begins with `source`, also for an impossible shape,
// strides with holes, a box or a range out of bounds, and a file outside the directory. Does not
// call check_whole().
SliceIndex parse_slice_index(std::string_view json, const std::string& source);

}  // namespace lockstep::inline v0
