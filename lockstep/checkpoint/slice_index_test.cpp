#include "lockstep/checkpoint/slice_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::slice_index_test {
namespace {

using ::testing::HasSubstr;

// A matrix of 3 x 4 in two files, and a count in the first.
SliceIndex example() {
  SliceIndex index;
  index.metadata = {{"optimizer", "AdamW"}};
  index.tensors["0.exp_avg"] = {
      .dtype = "F32", .shape = {3, 4}, .strides = {4, 1}, .slices = {{"a", 0, 7}, {"b", 7, 12}}};
  index.tensors["0.step"] = {.dtype = "I64", .shape = {}, .strides = {}, .slices = {{"a", 0, 1}}};
  index.tensors["1.exp_avg"] = {
      .dtype = "F32", .shape = {2, 3}, .strides = {1, 2}, .slices = {{"b", 0, 6}}};
  return index;
}

TEST(SliceIndex, ComesBackFromItsText) {
  const SliceIndex index = example();
  EXPECT_EQ(parse_slice_index(format_slice_index(index), "test"), index);
  check_whole(index, "test");
}

// Two halves of the columns of a 3 x 4 matrix, the second of which is in two files.
SliceIndex in_boxes() {
  SliceIndex index;
  const TensorBox left{{0, 0}, {3, 2}}, right{{0, 2}, {3, 4}};
  index.tensors["w"] = {.dtype = "F32",
                        .shape = {3, 4},
                        .strides = {4, 1},
                        .slices = {{"a", 0, 6, left}, {"b", 0, 2, right}, {"c", 2, 6, right}}};
  return index;
}

TEST(SliceIndex, RangesAreOfBoxes) {
  const SliceIndex index = in_boxes();
  const std::string text = format_slice_index(index);
  EXPECT_THAT(text, HasSubstr("\"box\": \"0:3,2:4\""));
  EXPECT_EQ(parse_slice_index(text, "test"), index);
  check_whole(index, "test");
  // The ranks' slices may come in any order.
  SliceIndex together, second = index;
  second.tensors["w"].slices.erase(second.tensors["w"].slices.begin());
  SliceIndex first = index;
  first.tensors["w"].slices.resize(1);
  add_slices(together, second, "test");
  add_slices(together, first, "test");
  EXPECT_EQ(together, index);
  EXPECT_THAT(message_of<CheckpointError>([&] { check_whole(second, "test"); }),
              HasSubstr("do not make it up: indices of dim 1 from 0 on are missing"));
  // A box may not be the whole tensor.
  const std::string all = R"({"metadata": {}, "tensors": {"w": {"dtype": "F32", "shape": [3, 4],
      "slices": [{"file": "a", "begin": 0, "end": 12, "box": "0:3,0:4"}]}}})";
  EXPECT_TRUE(parse_slice_index(all, "test").tensors["w"].slices[0].box.whole());
}

// Equals the former version's output byte for byte.
TEST(SliceIndex, WithoutBoxesItIsAsItWas) {
  const std::string text = R"({
 "metadata": {
  "optimizer": "AdamW"
 },
 "tensors": {
  "0.exp_avg": {
   "dtype": "F32",
   "shape": [
    3,
    4
   ],
   "slices": [
    {
     "begin": 0,
     "end": 7,
     "file": "a"
    },
    {
     "begin": 7,
     "end": 12,
     "file": "b"
    }
   ]
  },
  "0.step": {
   "dtype": "I64",
   "shape": [],
   "slices": [
    {
     "begin": 0,
     "end": 1,
     "file": "a"
    }
   ]
  },
  "1.exp_avg": {
   "dtype": "F32",
   "shape": [
    2,
    3
   ],
   "slices": [
    {
     "begin": 0,
     "end": 6,
     "file": "b"
    }
   ],
   "strides": [
    1,
    2
   ]
  }
 }
}
)";
  EXPECT_EQ(format_slice_index(example()), text);
  EXPECT_EQ(parse_slice_index(text, "test"), example());
}

TEST(SliceIndex, SlicesOfRanksComeTogether) {
  SliceIndex index;
  SliceIndex first = example(), second = example();
  first.tensors["0.exp_avg"].slices = {{"a", 0, 7}};
  first.tensors.erase("1.exp_avg");
  second.tensors["0.exp_avg"].slices = {{"b", 7, 12}};
  second.tensors.erase("0.step");
  index.metadata = first.metadata;
  add_slices(index, second, "test");
  EXPECT_THAT(message_of<CheckpointError>([&] { check_whole(index, "test"); }),
              HasSubstr("test: the slices of '0.exp_avg' do not make it up"));
  add_slices(index, first, "test");
  EXPECT_EQ(index, example());
  second.tensors["0.exp_avg"].shape = {4, 3};
  EXPECT_THAT(message_of<CheckpointError>([&] { add_slices(index, second, "test"); }),
              HasSubstr("ranks disagree about the shape or dtype of '0.exp_avg'"));
}

TEST(SliceIndex, HolesAndOverlapsAreNamed) {
  const std::vector<std::vector<IndexedSlice>> wrong = {
      {},
      {{"a", 0, 7}},
      {{"a", 1, 12}},
      {{"a", 0, 6}, {"b", 7, 12}},
      {{"a", 0, 8}, {"b", 7, 12}},
      {{"a", 0, 12}, {"b", 0, 12}},
      {{"a", 0, 12}, {"b", 7, 12}},
  };
  for (const auto& slices : wrong) {
    SliceIndex index = example();
    index.tensors["0.exp_avg"].slices = slices;
    EXPECT_THAT(message_of<CheckpointError>([&] { check_whole(index, "test"); }),
                HasSubstr("0.exp_avg"))
        << slices.size();
  }
  SliceIndex empty;
  empty.tensors["none"] = {
      .dtype = "F32", .shape = {0, 4}, .strides = {4, 1}, .slices = {{"a", 0, 0}}};
  check_whole(empty, "test");
}

TEST(SliceIndex, WhatCannotBeIsRefusedInOneLine) {
  const auto tensor = [](const std::string& members) {
    return R"({"metadata": {}, "tensors": {"t": {)" + members + "}}}";
  };
  const std::pair<std::string, const char*> wrong[] = {
      {"", "is not an index of slices"},
      {"[]", "is not an index of slices"},
      {R"({"metadata": {}})", "is not an index of slices"},
      {R"({"metadata": {"a": 1}, "tensors": {}})", "is not an index of slices"},
      {tensor(R"("dtype": "F32", "shape": [2])"), "is not an index of slices"},
      {tensor(R"("dtype": "F99", "shape": [2], "slices": [])"), "cannot be"},
      {tensor(R"("dtype": "F32", "shape": [-2], "slices": [])"), "cannot be"},
      {tensor(R"("dtype": "F32", "shape": [4611686018427387904, 4], "slices": [])"), "cannot be"},
      {tensor(R"("dtype": "F32", "shape": [2, 2], "strides": [3, 1], "slices": [])"), "holes"},
      {tensor(R"("dtype": "F32", "shape": [2, 2], "strides": [1], "slices": [])"), "holes"},
      {tensor(R"("dtype": "F32", "shape": [0, 4611686018427387904, 4], "slices": [])"),
       "cannot be"},
      {tensor(R"("dtype": "F32", "shape": [2.5], "slices": [])"), "is not an index of slices"},
      {tensor(R"("dtype": "F32", "shape": [1, 5], "strides": [-3, 1], "slices": [])"), "holes"},
      {tensor(R"("dtype": "F32", "shape": [0, 5], "strides": [1], "slices": [])"), "holes"},
      {tensor(R"("dtype": "F32", "shape": [2],
                 "slices": [{"file": "x", "begin": 0, "end": 1e300}])"),
       "is not an index of slices"},
      {tensor(R"("dtype": "F32", "shape": [2],
                 "slices": [{"file": "../x", "begin": 0, "end": 2}])"),
       "outside its directory"},
      {tensor(R"("dtype": "F32", "shape": [2],
                 "slices": [{"file": "x", "begin": 0, "end": 3}])"),
       "beyond its ends"},
      {tensor(R"("dtype": "F32", "shape": [2],
                 "slices": [{"file": "x", "begin": -1, "end": 2}])"),
       "beyond its ends"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 5, "box": "0:2,1:3"}])"),
       "beyond its ends"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 4, "box": "0:2,3:5"}])"),
       "a box that is none of it"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 0, "box": "0:2,3:3"}])"),
       "a box that is none of it"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 2, "box": "0:2"}])"),
       "a box that is none of it"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 2, "box": "two"}])"),
       "a box that is none of it"},
      {tensor(R"("dtype": "F32", "shape": [2, 4],
                 "slices": [{"file": "x", "begin": 0, "end": 2, "box": [0, 2, 0, 1]}])"),
       "is not an index of slices"},
  };
  for (const auto& [text, expected] : wrong) {
    const std::string message =
        message_of<CheckpointError>([&] { parse_slice_index(text, "test"); });
    EXPECT_THAT(message, HasSubstr(expected)) << text;
    EXPECT_TRUE(message.starts_with("test: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::slice_index_test
