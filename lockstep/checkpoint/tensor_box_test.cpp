#include "lockstep/checkpoint/tensor_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace lockstep::inline v0::tensor_box_test {
namespace {

using ::testing::HasSubstr;

using Shape = std::vector<int64_t>;

int64_t below(std::mt19937& random, int64_t limit) {
  return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
}

int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The memory offsets of a box's elements, in ascending order: the reference for all comparisons,
// computed one by one.
std::vector<int64_t> places_of(const Shape& shape, const Shape& strides, const TensorBox& box) {
  std::vector<int64_t> places;
  Shape index(shape.size(), 0);
  for (int64_t i = 0; i < product(shape); ++i) {
    int64_t rest = i, place = 0;
    bool inside = true;
    for (size_t dim = shape.size(); dim-- > 0;) {
      index[dim] = rest % shape[dim];
      rest /= shape[dim];
      place += index[dim] * strides[dim];
      inside =
          inside && (box.whole() || (index[dim] >= box.begin[dim] && index[dim] < box.end[dim]));
    }
    if (inside) places.push_back(place);
  }
  std::sort(places.begin(), places.end());
  return places;
}

Shape random_shape(std::mt19937& random) {
  Shape shape(static_cast<size_t>(below(random, 5)));
  for (int64_t& size : shape) size = 1 + below(random, 5);
  return shape;
}
Shape random_strides(std::mt19937& random, const Shape& shape) {
  Shape order(shape.size());
  std::iota(order.begin(), order.end(), int64_t{1});
  std::shuffle(order.begin(), order.end(), random);
  return dense_strides(shape, order);
}
TensorBox random_box(std::mt19937& random, const Shape& shape) {
  TensorBox box;
  if (below(random, 5) == 0) return box;
  for (const int64_t size : shape) {
    const bool all = below(random, 3) == 0;
    box.begin.push_back(all ? 0 : below(random, size));
    box.end.push_back(all ? size : box.begin.back() + 1 + below(random, size - box.begin.back()));
  }
  return box;
}
BoxRange random_range(std::mt19937& random, const Shape& shape, TensorBox box) {
  const int64_t numel = numel_of(box, shape);
  const int64_t begin = below(random, 3) == 0 ? 0 : below(random, numel + 1);
  const int64_t end = below(random, 3) == 0 ? numel : begin + below(random, numel - begin + 1);
  return {std::move(box), begin, end};
}

TEST(TensorBox, RunsAreWhatTwoRangesShare) {
  std::mt19937 random(7);
  int64_t shared = 0, longest = 0;
  for (int round = 0; round < 100000; ++round) {
    const Shape shape = random_shape(random), strides = random_strides(random, shape);
    const BoxRange to = random_range(random, shape, random_box(random, shape));
    const BoxRange from = random_range(random, shape, random_box(random, shape));
    const auto to_places = places_of(shape, strides, to.box),
               from_places = places_of(shape, strides, from.box);
    std::vector<std::pair<int64_t, int64_t>> expected, found;
    for (int64_t t = to.begin; t < to.end; ++t) {
      const int64_t place = to_places[static_cast<size_t>(t)];
      const auto at = std::lower_bound(from_places.begin(), from_places.end(), place);
      const int64_t f = at - from_places.begin();
      if (at != from_places.end() && *at == place && f >= from.begin && f < from.end)
        expected.emplace_back(t - to.begin, f - from.begin);
    }
    int64_t last_to = -1, last_from = -1;
    for_each_run(shape, strides, to, from, [&](int64_t t, int64_t f, int64_t length) {
      ASSERT_GT(length, 0);
      EXPECT_FALSE(t == last_to && f == last_from) << "one run is two";
      last_to = t + length;
      last_from = f + length;
      longest = std::max(longest, length);
      for (int64_t i = 0; i < length; ++i) found.emplace_back(t + i, f + i);
    });
    ASSERT_EQ(found, expected) << "round " << round << ": [" << to_string(to.box) << "] and ["
                               << to_string(from.box) << "]";
    shared += static_cast<int64_t>(found.size());
  }
  EXPECT_GT(shared, 50000) << "the rounds hardly meet";
  EXPECT_GT(longest, 50);
}

// Elements are not visited one by one.
TEST(TensorBox, ColumnsAreRunsOfARow) {
  const Shape shape{4096, 11008};
  const BoxRange columns{{{0, 2752}, {4096, 5504}}, 0, 4096 * 2752};
  int64_t runs = 0;
  for_each_run(shape, row_strides(shape), columns, {{}, 0, 4096 * 11008},
               [&](int64_t to, int64_t from, int64_t length) {
                 EXPECT_EQ(to, runs * 2752);
                 EXPECT_EQ(from, runs * 11008 + 2752);
                 EXPECT_EQ(length, 2752);
                 ++runs;
               });
  EXPECT_EQ(runs, 4096);
  // Rows are one run, and so are columns of a box with the same columns.
  runs = 0;
  const auto one_run = [&](const BoxRange& to, const BoxRange& from, int64_t expected) {
    runs = 0;
    for_each_run(shape, row_strides(shape), to, from, [&](int64_t, int64_t, int64_t length) {
      EXPECT_EQ(length, expected);
      ++runs;
    });
    EXPECT_EQ(runs, 1);
  };
  one_run({{{1024, 0}, {2048, 11008}}, 0, 1024 * 11008}, {{}, 0, 4096 * 11008}, 1024 * 11008);
  one_run({{{1024, 2752}, {2048, 5504}}, 0, 1024 * 2752}, columns, 1024 * 2752);
  one_run({columns.box, 100, 5000}, {columns.box, 3000, 9000}, 2000);
}

TEST(TensorBox, GridsAreWholeAndNothingElseIs) {
  std::mt19937 random(11);
  int whole = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(random);
    // Cuts along each dim, all boxes between them, and cuts of each box's range.
    std::vector<TensorBox> boxes{{}};
    for (const int64_t size : shape) {
      std::vector<int64_t> cuts{0, size};
      while (below(random, 2) == 0) cuts.push_back(below(random, size + 1));
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      std::vector<TensorBox> longer;
      for (const TensorBox& box : boxes) {
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          longer.push_back(box);
          longer.back().begin.push_back(cuts[i]);
          longer.back().end.push_back(cuts[i + 1]);
        }
      }
      boxes = std::move(longer);
    }
    std::vector<BoxRange> ranges;
    for (const TensorBox& box : boxes) {
      const int64_t numel = numel_of(box, shape);
      int64_t next = 0;
      while (next < numel) {
        const int64_t end = below(random, 2) == 0 ? numel : next + 1 + below(random, numel - next);
        ranges.push_back({box, next, end});
        next = end;
      }
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    EXPECT_EQ(why_not_whole(shape, ranges), "");
    ++whole;
    std::vector<BoxRange> wrong = ranges;
    const auto which = static_cast<size_t>(below(random, static_cast<int64_t>(wrong.size())));
    switch (below(random, 4)) {
      case 0:
        wrong.erase(wrong.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      case 1:
        wrong.push_back(wrong[which]);
        break;
      case 2:
        ++wrong[which].begin;
        break;
      default:
        --wrong[which].end;
    }
    EXPECT_NE(why_not_whole(shape, wrong), "") << "round " << round;
  }
  EXPECT_EQ(whole, 3000);
}

TEST(TensorBox, WhatIsWrongIsNamed) {
  const Shape shape{4, 6};
  const BoxRange left{{{0, 0}, {4, 2}}, 0, 8}, right{{{0, 2}, {4, 6}}, 0, 16};
  EXPECT_EQ(why_not_whole(shape, {left, right}), "");
  EXPECT_THAT(why_not_whole(shape, {}), HasSubstr("elements from 0 on"));
  EXPECT_THAT(why_not_whole(shape, {left}), HasSubstr("indices of dim 1 from 2 on"));
  EXPECT_THAT(why_not_whole(shape, {right}), HasSubstr("indices of dim 1 from 0 on"));
  EXPECT_THAT(why_not_whole(shape, {left, {right.box, 0, 9}}),
              HasSubstr("of [0:4,2:6] elements from 9 on"));
  EXPECT_THAT(why_not_whole(shape, {left, right, {{}, 0, 24}}), HasSubstr("parts of it, too"));
  const BoxRange corner{{{0, 0}, {2, 2}}, 0, 4}, middle{{{2, 2}, {4, 6}}, 0, 8};
  EXPECT_THAT(why_not_whole(shape, {corner, middle}), HasSubstr("only 2 of its 4 parts"));
  EXPECT_THAT(why_not_whole(shape, {left, {{{0, 1}, {4, 6}}, 0, 20}}),
              HasSubstr("indices of dim 1 from 1 on"));
  EXPECT_EQ(why_not_whole(shape, {{{{0, 0}, {4, 6}}, 0, 24}}), "") << "all of it as a box";
  EXPECT_EQ(why_not_whole({0, 6}, {{{}, 0, 0}}), "");
  EXPECT_EQ(why_not_whole({}, {{{}, 0, 1}}), "");
}

TEST(TensorBox, ComesBackFromItsText) {
  const TensorBox box{{0, 2752}, {4096, 5504}};
  EXPECT_EQ(to_string(box), "0:4096,2752:5504");
  EXPECT_EQ(parse_box(to_string(box)), box);
  EXPECT_EQ(parse_box(""), TensorBox{});
  for (const char* text : {"0", "0:", ":4", "0:4,", ",0:4", "0:4;1:2", "0:4 ", "a:b", "0:4,1",
                           "0:99999999999999999999", "0-4"})
    EXPECT_EQ(parse_box(text), std::nullopt) << text;
  EXPECT_TRUE(fits(box, {4096, 11008}));
  EXPECT_FALSE(fits(box, {4096, 5503}));
  EXPECT_FALSE(fits(box, {4096}));
  EXPECT_FALSE(fits({{1}, {1}}, {4}));
  EXPECT_FALSE(fits({{-1}, {1}}, {4}));
  EXPECT_FALSE(fits({{0}, {}}, {4}));
  EXPECT_EQ(in_one_form({{0, 0}, {4, 6}}, {4, 6}), TensorBox{});
  EXPECT_EQ(in_one_form({{0, 0}, {4, 5}}, {4, 6}), (TensorBox{{0, 0}, {4, 5}}));
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_box_test
