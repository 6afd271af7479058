#include "lockstep/checkpoint/tensor_box.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

// The dims in memory order, those with neighbouring elements last. Dims of size 1 may be anywhere.
std::vector<size_t> memory_order(const std::vector<int64_t>& strides) {
  std::vector<size_t> order(strides.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  return order;
}

// The indices [begin, end) of a dim, and its size.
struct Span {
  int64_t begin = 0, end = 0, of = 1;
  int64_t size() const { return end - begin; }
  bool all() const { return begin == 0 && end == of; }
};

// A box's spans in memory order.
using Spans = std::vector<Span>;

Spans spans_of(const TensorBox& box, const std::vector<int64_t>& shape,
               const std::vector<size_t>& order) {
  Spans spans;
  for (const size_t dim : order) {
    if (shape[dim] == 1) continue;
    spans.push_back(box.whole() ? Span{0, shape[dim], shape[dim]}
                                : Span{box.begin[dim], box.end[dim], shape[dim]});
  }
  if (spans.empty()) spans.push_back({0, 1, 1});
  return spans;
}

// A dim that both boxes have in full continues where the one before ends: both become one.
void join(Spans& a, Spans& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].begin != b[i].begin || a[i].end != b[i].end) continue;
    a[i] = b[i] = {0, a[i].size(), a[i].size()};  // as if the dim had no other indices
  }
  size_t last = 0;
  for (size_t i = 1; i < a.size(); ++i) {
    if (a[i].all() && b[i].all()) {
      for (Span* span : {&a[last], &b[last]}) {
        span->begin *= a[i].of;
        span->end *= a[i].of;
        span->of *= a[i].of;
      }
    } else {
      ++last;
      a[last] = a[i];
      b[last] = b[i];
    }
  }
  a.resize(last + 1);
  b.resize(last + 1);
}

using Indices = std::vector<int64_t>;

Indices indices_of(const Spans& spans, int64_t place) {
  Indices indices(spans.size());
  for (size_t i = spans.size(); i-- > 0;) {
    indices[i] = spans[i].begin + place % spans[i].size();
    place /= spans[i].size();
  }
  return indices;
}

// The number of the box's elements before the one at `indices`, which need not be in it;
// `and_itself`: including it.
int64_t count_before(const Spans& spans, const Indices& indices, bool and_itself) {
  int64_t rest = 1, count = 0;
  for (const Span& span : spans) rest *= span.size();
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    rest /= span.size();
    if (indices[i] < span.begin) return count;
    if (indices[i] >= span.end) return count + span.size() * rest;
    count += (indices[i] - span.begin) * rest;
  }
  return count + (and_itself ? 1 : 0);
}

int64_t place_of(const Spans& spans, const Indices& indices) {
  int64_t place = 0;
  for (size_t i = 0; i < spans.size(); ++i)
    place = place * spans[i].size() + indices[i] - spans[i].begin;
  return place;
}

// The order of ranges in one box.
bool comes_before(const BoxRange& a, const BoxRange& b) {
  return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
}

// The first element that is missing or appears twice; nullopt if each appears once.
std::optional<int64_t> first_wrong(std::vector<BoxRange>& ranges, int64_t numel) {
  std::sort(ranges.begin(), ranges.end(), comes_before);
  int64_t next = 0;
  for (const BoxRange& range : ranges) {
    if (range.begin != next) return std::min(next, range.begin);
    next = range.end;
  }
  if (next != numel) return next;
  return std::nullopt;
}

}  // namespace

bool fits(const TensorBox& box, const std::vector<int64_t>& shape) {
  if (box.begin.size() != box.end.size()) return false;
  if (box.whole()) return true;
  if (box.begin.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (box.begin[i] < 0 || box.begin[i] >= box.end[i] || box.end[i] > shape[i]) return false;
  }
  return true;
}

TensorBox in_one_form(TensorBox box, const std::vector<int64_t>& shape) {
  const bool from_the_first =
      std::all_of(box.begin.begin(), box.begin.end(), [](int64_t begin) { return begin == 0; });
  return from_the_first && box.end == shape ? TensorBox{} : std::move(box);
}

std::vector<int64_t> shape_of(const TensorBox& box, std::vector<int64_t> shape) {
  for (size_t i = 0; i < box.begin.size(); ++i) shape[i] = box.end[i] - box.begin[i];
  return shape;
}

int64_t numel_of(const TensorBox& box, const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape_of(box, shape)) numel *= size;
  return numel;
}

std::string to_string(const TensorBox& box) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < box.begin.size(); ++i)
    dims.push_back(std::to_string(box.begin[i]) + ":" + std::to_string(box.end[i]));
  return joined(dims, ",");
}

std::optional<TensorBox> parse_box(std::string_view text) {
  TensorBox box;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](std::vector<int64_t>& into) {
    const auto read = std::from_chars(at, end, into.emplace_back());
    if (read.ec != std::errc()) return false;
    at = read.ptr;
    return true;
  };
  while (at != end) {
    if (!box.begin.empty() && *at++ != ',') return std::nullopt;
    if (!number(box.begin) || at == end || *at++ != ':' || !number(box.end)) return std::nullopt;
  }
  return box;
}

std::vector<int64_t> row_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape,
                                   const std::vector<int64_t>& like) {
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t next = 1;
  const std::vector<size_t> order = memory_order(like);
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = next;
    next *= std::max<int64_t>(shape[*dim], 1);
  }
  return strides;
}

void for_each_run(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                  const BoxRange& to, const BoxRange& from,
                  const std::function<void(int64_t to, int64_t from, int64_t length)>& visit) {
  if (to.begin >= to.end || from.begin >= from.end) return;
  if (to.box == from.box) {
    const int64_t begin = std::max(to.begin, from.begin), end = std::min(to.end, from.end);
    if (begin < end) visit(begin - to.begin, begin - from.begin, end - begin);
    return;
  }
  const std::vector<size_t> order = memory_order(strides);
  Spans in_to = spans_of(to.box, shape, order), in_from = spans_of(from.box, shape, order);
  join(in_to, in_from);
  Spans shared = in_to;
  for (size_t i = 0; i < shared.size(); ++i) {
    shared[i].begin = std::max(in_to[i].begin, in_from[i].begin);
    shared[i].end = std::min(in_to[i].end, in_from[i].end);
    if (shared[i].begin >= shared[i].end) return;
  }
  // Elements come in the same order, whichever box they are counted in.
  int64_t at = std::max(count_before(shared, indices_of(in_to, to.begin), false),
                        count_before(shared, indices_of(in_from, from.begin), false));
  const int64_t end = std::min(count_before(shared, indices_of(in_to, to.end - 1), true),
                               count_before(shared, indices_of(in_from, from.end - 1), true));
  if (at >= end) return;
  Indices indices = indices_of(shared, at);
  const Span& inner = shared.back();
  while (true) {
    const int64_t length = std::min(inner.end - indices.back(), end - at);
    visit(place_of(in_to, indices) - to.begin, place_of(in_from, indices) - from.begin, length);
    at += length;
    if (at >= end) return;
    indices.back() = inner.begin;
    for (size_t i = indices.size() - 1; i-- > 0;) {
      if (++indices[i] < shared[i].end) break;
      indices[i] = shared[i].begin;
    }
  }
}

std::string why_not_whole(const std::vector<int64_t>& shape, std::vector<BoxRange> ranges) {
  const std::string wrong = " on are missing or there twice";
  std::map<TensorBox, std::vector<BoxRange>> boxes;
  for (BoxRange& range : ranges) {
    range.box = in_one_form(std::move(range.box), shape);
    boxes[range.box].push_back(range);
  }
  if (boxes.empty()) return "elements from 0" + wrong;
  for (auto& [box, of_box] : boxes) {
    const auto found = first_wrong(of_box, numel_of(box, shape));
    if (!found) continue;
    const std::string elements = "elements from " + std::to_string(*found) + wrong;
    return box.whole() ? elements : "of [" + to_string(box) + "] " + elements;
  }
  if (boxes.size() == 1 && boxes.begin()->first.whole()) return "";
  if (boxes.begin()->first.whole()) return "all of it is there, and parts of it, too";
  // If the boxes divide each dim in the same way, and there are as many as possible, they are
  // complete.
  size_t expected = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    std::set<std::pair<int64_t, int64_t>> spans;
    for (const auto& entry : boxes) spans.emplace(entry.first.begin[dim], entry.first.end[dim]);
    int64_t next = 0;
    for (const auto& [begin, end] : spans) {
      if (begin != next)
        return "indices of dim " + std::to_string(dim) + " from " +
               std::to_string(std::min(begin, next)) + wrong;
      next = end;
    }
    if (next != shape[dim])
      return "indices of dim " + std::to_string(dim) + " from " + std::to_string(next) + wrong;
    if (__builtin_mul_overflow(expected, spans.size(), &expected))
      expected = std::numeric_limits<size_t>::max();
  }
  if (expected == boxes.size()) return "";
  return "only " + std::to_string(boxes.size()) + " of its " + std::to_string(expected) +
         " parts are there";
}

}  // namespace lockstep::inline v0
