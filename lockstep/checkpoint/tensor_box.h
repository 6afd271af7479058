// Boxes of a tensor's elements and ranges within them, as data: a rank's part of a tensor that is
// divided along some of its dims, and the part of one of several ranks that divide this part
// further. Pure.
//
//   of [4096, 11008] the columns [2752, 5504):  TensorBox{{0, 2752}, {4096, 5504}}
//   of that the first half:                     BoxRange{box, 0, 4096 * 2752 / 2}
//
// The elements of a box are counted in the memory order of the whole tensor: row by row or, where
// its strides have another order, in theirs. A separate tensor with the box's elements, in memory
// of that order, therefore has them one after another.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The indices [begin, end) of each dim. Without dims: the whole tensor.
struct LOCKSTEP_API TensorBox {
  std::vector<int64_t> begin = {};
  std::vector<int64_t> end = {};

  bool whole() const { return begin.empty(); }  // the box is the whole tensor
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
  friend std::strong_ordering operator<=>(const TensorBox&, const TensorBox&) = default;
};

// Elements [begin, end) of a box.
struct BoxRange {
  TensorBox box = {};
  int64_t begin = 0;
  int64_t end = 0;
};

// Whether a tensor of that shape has such a box: as many dims, and at least one index of each.
LOCKSTEP_API bool fits(const TensorBox& box, const std::vector<int64_t>& shape);
// Normalises a box: {} where it is all of the tensor.
LOCKSTEP_API TensorBox in_one_form(TensorBox box, const std::vector<int64_t>& shape);
// The shape of the box in a tensor of that shape.
LOCKSTEP_API std::vector<int64_t> shape_of(const TensorBox& box, std::vector<int64_t> shape);
LOCKSTEP_API int64_t numel_of(const TensorBox& box, const std::vector<int64_t>& shape);

// "0:4096,2752:5504", as numpy writes slices; "" for the whole.
LOCKSTEP_API std::string to_string(const TensorBox& box);
// nullopt for a text that is not a box.
LOCKSTEP_API std::optional<TensorBox> parse_box(std::string_view text);

// For a tensor that is stored row by row.
LOCKSTEP_API std::vector<int64_t> row_strides(const std::vector<int64_t>& shape);
// For a tensor of `shape` without holes whose dims have the order of `like`, with one stride per
// dim.
LOCKSTEP_API std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape,
                                                const std::vector<int64_t>& like);

// Visits the elements that two ranges of one tensor share, in ascending order, in stretches that
// are contiguous in both and as long as possible: visit(to, from, length), with positions relative
// to to.begin and from.begin. Takes time in proportion to the stretches, not to the elements. Boxes
// and ranges must be the tensor's.
LOCKSTEP_API void for_each_run(
    const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, const BoxRange& to,
    const BoxRange& from,
    const std::function<void(int64_t to, int64_t from, int64_t length)>& visit);

// "" where the ranges have each element of the tensor once, and their boxes form a grid: along each
// dim the same cuts through the whole tensor. Otherwise the reason why not. Boxes and ranges must
// be the tensor's.
LOCKSTEP_API std::string why_not_whole(const std::vector<int64_t>& shape,
                                       std::vector<BoxRange> ranges);

}  // namespace lockstep::inline v0
