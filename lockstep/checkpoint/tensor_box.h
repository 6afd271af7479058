// Boxes of a tensor's elements and ranges within them, as data: what one rank has of a tensor that is divided along
// some of its dims, and what one of several ranks has that divide this part further. Pure.
//
//   of [4096, 11008] the columns [2752, 5504):  TensorBox{{0, 2752}, {4096, 5504}}
//   of that the first half:                     BoxRange{box, 0, 4096 * 2752 / 2}
//
// The elements of a box are counted in the order in which the whole tensor has them in memory: row by row, or,
// where its strides are in another order, in theirs. So a tensor of its own that has the box's elements, in memory of
// that order, has them one after the other.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The indices [begin, end) of each dim. Without any: the whole tensor.
struct TensorBox {
  std::vector<int64_t> begin = {};
  std::vector<int64_t> end = {};

  bool whole() const { return begin.empty(); }
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
  friend std::strong_ordering operator<=>(const TensorBox&, const TensorBox&) = default;
};

// Elements [begin, end) of a box.
struct BoxRange {
  TensorBox box = {};
  int64_t begin = 0;
  int64_t end = 0;
};

// Whether a tensor of that shape has such a box: as many dims, and indices of each. An empty box is none.
bool fits(const TensorBox& box, const std::vector<int64_t>& shape);
// {} where the box is all of the tensor: each box has one form.
TensorBox in_one_form(TensorBox box, const std::vector<int64_t>& shape);
// What a tensor of that shape has in the box.
std::vector<int64_t> shape_of(const TensorBox& box, std::vector<int64_t> shape);
int64_t numel_of(const TensorBox& box, const std::vector<int64_t>& shape);

// "0:4096,2752:5504", as numpy writes slices; "" for the whole.
std::string to_string(const TensorBox& box);
// Nothing for a text that is none.
std::optional<TensorBox> parse_box(std::string_view text);

// Of a tensor that lies row by row.
std::vector<int64_t> row_strides(const std::vector<int64_t>& shape);
// Of a tensor of `shape` without holes whose dims are in the order of `like`, a stride a dim.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape,
                                   const std::vector<int64_t>& like);

// The elements that two ranges of one tensor share, in ascending order, in stretches that lie in one piece in both, as
// long as they can be: visit(to, from, length) with places that count from to.begin and from.begin. Takes time in
// proportion to the stretches, not to the elements. Boxes and ranges must be the tensor's.
void for_each_run(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                  const BoxRange& to, const BoxRange& from,
                  const std::function<void(int64_t to, int64_t from, int64_t length)>& visit);

// "" where the ranges have each element of the tensor once, and their boxes are a grid: along each dim the same cuts
// through the whole tensor. Else what is wrong with them. Boxes and ranges must be the tensor's.
std::string why_not_whole(const std::vector<int64_t>& shape, std::vector<BoxRange> ranges);

}  // namespace lockstep
