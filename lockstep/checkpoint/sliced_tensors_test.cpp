#include "lockstep/checkpoint/sliced_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::sliced_tensors_test {
namespace {

using ::testing::HasSubstr;

// 0, 1, ... in memory order, in slices that end at `ends`.
SlicedTensor counted(std::vector<int64_t> sizes, std::vector<int64_t> strides,
                     const std::vector<int64_t>& ends) {
  SlicedTensor tensor{
      .dtype = at::kFloat, .sizes = std::move(sizes), .strides = std::move(strides), .slices = {}};
  int64_t begin = 0;
  for (const int64_t end : ends) {
    tensor.slices.push_back({begin, at::arange(begin, end, at::kFloat)});
    begin = end;
  }
  return tensor;
}

TEST(SlicedTensors, RangesAreReadAcrossSlices) {
  const SlicedTensor tensor = counted({3, 4}, {4, 1}, {1, 5, 5, 12});
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      const at::Tensor out = at::full({end - begin}, -1.0f);
      tensor.read(begin, out);
      EXPECT_TRUE(out.equal(at::arange(begin, end, at::kFloat))) << begin << " to " << end;
    }
  }
  EXPECT_TRUE(tensor.whole().equal(at::arange(12, at::kFloat).view({3, 4})));
  EXPECT_TRUE(tensor.complete());
}

TEST(SlicedTensors, WhatIsNotThereIsRefused) {
  SlicedTensor tensor = counted({12}, {1}, {5, 7, 12});
  tensor.slices.erase(tensor.slices.begin() + 1);
  EXPECT_FALSE(tensor.complete());
  const at::Tensor out = at::empty({4});
  EXPECT_THAT(message_of<InvalidArgument>([&] { tensor.read(3, out); }),
              HasSubstr("elements 3 to 7 is not there from 5 on"));
  EXPECT_THROW(tensor.read(10, out), InvalidArgument);
  EXPECT_THROW(tensor.whole(), InvalidArgument);
  tensor.read(8, out);
  EXPECT_EQ(out[0].item<float>(), 8);
}

TEST(SlicedTensors, OrderInMemoryIsKept) {
  const at::Tensor image =
      at::arange(24, at::kFloat).view({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  const SlicedTensors whole(Safetensors{.tensors = {{"image", image}}});
  const SlicedTensor& tensor = *whole.find("image");
  EXPECT_EQ(tensor.strides, image.strides().vec());
  EXPECT_TRUE(tensor.whole().equal(image));
  EXPECT_EQ(tensor.whole().const_data_ptr(), image.const_data_ptr()) << "a view";
  SlicedTensor halves = tensor;
  halves.slices = {{0, tensor.slices[0].values.narrow(0, 0, 10)},
                   {10, tensor.slices[0].values.narrow(0, 10, 14)}};
  EXPECT_TRUE(halves.whole().equal(image));
  const SlicedTensors expanded(Safetensors{.tensors = {{"one", at::ones({1}).expand({4})}}});
  EXPECT_TRUE(expanded.find("one")->whole().equal(at::ones({4})));
  EXPECT_EQ(expanded.bytes(), 16);
}

// 5 x 6 x 4 in memory order; in four boxes, each cut into two ranges.
SlicedTensor in_boxes(const at::Tensor& tensor) {
  SlicedTensor sliced =
      slice_of(tensor.sizes(), tensor.strides(), 0, at::empty({0}, tensor.options()));
  sliced.slices.clear();
  for (const auto& [r, s] : {std::pair<int64_t, int64_t>{0, 3}, {3, 5}}) {
    for (const auto& [c, d] : {std::pair<int64_t, int64_t>{0, 2}, {2, 6}}) {
      // The part's own memory, in the whole tensor's order.
      const at::Tensor view = tensor.narrow(0, r, s - r).narrow(1, c, d - c);
      const at::Tensor part =
          at::empty_strided(view.sizes(), dense_strides(view.sizes().vec(), tensor.strides().vec()),
                            tensor.options())
              .copy_(view);
      const at::Tensor flat = part.as_strided({part.numel()}, {1});
      const TensorBox box{{r, c, 0}, {s, d, 4}};
      const int64_t half = flat.numel() / 2;
      sliced.slices.push_back({half, flat.narrow(0, half, flat.numel() - half), box});
      sliced.slices.push_back({0, flat.narrow(0, 0, half), box});
    }
  }
  return sliced;
}

TEST(SlicedTensors, RangesAreReadFromBoxes) {
  for (const bool transposed : {false, true}) {
    const at::Tensor rows = at::arange(120, at::kDouble).view({5, 6, 4});
    const at::Tensor tensor =
        transposed ? at::empty_strided({5, 6, 4}, {6, 1, 30}, at::kDouble).copy_(rows) : rows;
    const SlicedTensor sliced = in_boxes(tensor);
    EXPECT_TRUE(sliced.complete());
    EXPECT_TRUE(sliced.whole().equal(rows));
    EXPECT_EQ(sliced.whole().strides(), tensor.strides());
    const at::Tensor flat = tensor.as_strided({120}, {1});
    for (int64_t begin = 0; begin <= 120; begin += 7) {
      for (int64_t end = begin; end <= 120; end += 11) {
        const at::Tensor out = at::full({end - begin}, -1.0, at::kDouble);
        sliced.read(begin, out);
        EXPECT_TRUE(out.equal(flat.narrow(0, begin, end - begin))) << begin << " to " << end;
      }
    }
    // The same for any other box, also as a tensor of its own.
    const TensorBox box{{1, 1, 1}, {4, 5, 3}};
    const at::Tensor view = tensor.narrow(0, 1, 3).narrow(1, 1, 4).narrow(2, 1, 2);
    const SlicedTensor part = box_of(sliced, box);
    EXPECT_TRUE(part.whole().equal(view));
    EXPECT_EQ(part.sizes, view.sizes());
    EXPECT_TRUE(part.complete());
    const at::Tensor own = part.whole().as_strided({24}, {1});
    for (int64_t begin = 0; begin < 24; ++begin) {
      const at::Tensor a = at::empty({24 - begin}, at::kDouble), b = at::empty_like(a);
      part.read(begin, a);
      sliced.read(box, begin, b);
      EXPECT_TRUE(a.equal(own.narrow(0, begin, 24 - begin)));
      EXPECT_TRUE(a.equal(b));
    }
    const at::Tensor inner = at::empty({4}, at::kDouble);
    part.read({{1, 1, 0}, {2, 3, 2}}, 0, inner);
    const at::Tensor expected = view.narrow(0, 1, 1).narrow(1, 1, 2);
    EXPECT_TRUE(inner.sum().equal(expected.sum()));
    EXPECT_THROW(part.read({{0, 0, 0}, {4, 1, 1}}, 0, inner), InvalidArgument);
    EXPECT_THROW(box_of(part, box), InvalidArgument);
    EXPECT_THROW(box_of(sliced, {{0, 0, 0}, {5, 6, 5}}), InvalidArgument);
    EXPECT_FALSE(box_of(sliced, {{0, 0, 0}, {5, 6, 4}}).larger) << "all of it";
  }
}

TEST(SlicedTensors, ABoxThatLiesInOnePieceIsNotCopied) {
  const at::Tensor values = at::arange(12, at::kFloat);
  const TensorBox left{{0, 0}, {3, 2}}, right{{0, 2}, {3, 4}};
  SlicedTensor tensor = slice_of({3, 4}, {4, 1}, 0, values.narrow(0, 0, 6), left);
  tensor.slices.push_back({0, values.narrow(0, 6, 6), right});
  const at::Tensor part = box_of(tensor, right).whole();
  EXPECT_EQ(part.const_data_ptr(), values.const_data_ptr<float>() + 6);
  EXPECT_TRUE(part.equal(values.narrow(0, 6, 6).view({3, 2})));
  EXPECT_TRUE(tensor.whole().narrow(1, 2, 2).equal(part));
}

TEST(SlicedTensors, WhatABoxLacksIsNamed) {
  SlicedTensor tensor = in_boxes(at::arange(120, at::kDouble).view({5, 6, 4}));
  tensor.slices.erase(tensor.slices.begin() + 2);  // rows 0 to 3, the second half of columns 2 to 6
  EXPECT_FALSE(tensor.complete());
  const at::Tensor out = at::empty({120}, at::kDouble);
  // Row 1's last two columns are in the other half.
  EXPECT_THAT(message_of<InvalidArgument>([&] { tensor.read(0, out); }),
              HasSubstr("elements 0 to 120 is not there from 40 on"));
  tensor.read(0, out.narrow(0, 0, 40));
  EXPECT_THROW(tensor.whole(), InvalidArgument);
}

// Two files and their index, as two ranks write them.
class SlicedFiles : public ::testing::Test {
 protected:
  SlicedFiles() {
    const at::Tensor values = at::arange(12, at::kFloat);
    sums_["s-1"] = write_safetensors(dir_ / "s-1", {{"t", values.narrow(0, 0, 7)}});
    sums_["s-2"] = write_safetensors(dir_ / "s-2", {{"t", values.narrow(0, 7, 5)}});
    index_.metadata = {{"optimizer", "AdamW"}};
    index_.tensors["t"] = {.dtype = "F32",
                           .shape = {3, 4},
                           .strides = {4, 1},
                           .slices = {{"s-1", 0, 7}, {"s-2", 7, 12}}};
    write_index();
  }
  void write_index() { dir_.write("s.safetensors.index.json", format_slice_index(index_)); }
  SlicedTensors read() const { return read_sliced(dir_.path(), "s", sums_); }
  std::string refusal() const {
    const std::string message = message_of<CheckpointError>([&] { read(); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }

  TestDirectory dir_;
  FileSums sums_;
  SliceIndex index_;
};

TEST_F(SlicedFiles, AreReadAsOne) {
  const SlicedTensors tensors = read();
  EXPECT_EQ(tensors.metadata.at("optimizer"), "AdamW");
  EXPECT_TRUE(tensors.find("t")->whole().equal(at::arange(12, at::kFloat).view({3, 4})));
  const FileSum sum = write_safetensors(dir_ / "s.safetensors", {{"t", at::ones({2})}});
  EXPECT_THAT(refusal(), HasSubstr("is not listed in checksums.json")) << "of another checkpoint";
  sums_["s.safetensors"] = sum;
  EXPECT_EQ(read().find("t")->numel(), 2) << "a whole file comes first";
}

TEST_F(SlicedFiles, DamageIsNamed) {
  std::filesystem::rename(dir_ / "s-1", dir_ / "aside");
  EXPECT_THAT(refusal(), HasSubstr("s-1"));
  std::filesystem::copy(dir_ / "s-2", dir_ / "s-1");
  EXPECT_THAT(refusal(), HasSubstr("s-1")) << "another shard in its place";
  sums_.clear();
  EXPECT_THAT(refusal(), HasSubstr("s-1: lacks the slice of 't'")) << "the same without checksums";
  std::filesystem::rename(dir_ / "aside", dir_ / "s-1");
  read();
  std::filesystem::resize_file(dir_ / "s-2", std::filesystem::file_size(dir_ / "s-2") - 4);
  EXPECT_THAT(refusal(), HasSubstr("s-2"));
}

TEST_F(SlicedFiles, AWrongIndexIsNamed) {
  index_.tensors["t"].slices.pop_back();
  write_index();
  EXPECT_THAT(refusal(), HasSubstr("do not make it up"));
  index_.tensors["t"].slices.push_back({"elsewhere", 7, 12});
  write_index();
  EXPECT_THAT(refusal(), HasSubstr("elsewhere"));
  index_.tensors["t"].slices.back().file = "s-2";
  index_.tensors["t"].dtype = "I32";
  write_index();
  EXPECT_THAT(refusal(), HasSubstr("lacks the slice of 't'"));
  std::filesystem::remove(dir_ / "s.safetensors.index.json");
  EXPECT_THAT(refusal(), HasSubstr("s.safetensors"));
}

TEST(SlicedTensors, GiveTheirPartsToWhoAsks) {
  SlicedTensors stored;
  const at::Tensor values = at::arange(10, at::kFloat);
  stored.tensors["w"] = slice_of({5, 2}, {2, 1}, 0, values.narrow(0, 0, 4));
  stored.tensors["w"].slices.push_back({4, values.narrow(0, 4, 6)});
  const NamedTensors parameters{{"w", at::empty({5, 2})}};
  const auto part_of = stored_parts(stored, parameters, "here");
  at::Tensor part = at::empty({5}, at::kFloat);
  part_of("w", 3, part);
  EXPECT_TRUE(part.equal(values.narrow(0, 3, 5)));
  at::Tensor half = at::empty({2}, at::kBFloat16);
  part_of("w", 8, half);
  EXPECT_TRUE(half.equal(values.narrow(0, 8, 2).to(at::kBFloat16)));
  EXPECT_THROW(part_of("w", 6, part), InvalidArgument);
  const auto refusal = [&](const std::string& name, const at::Tensor& parameter) {
    return message_of<CheckpointError>(
        [&, with = NamedTensors{{name, parameter}}] { stored_parts(stored, with, "here"); });
  };
  EXPECT_THAT(refusal("v", at::empty({5, 2})), ::testing::HasSubstr("here: has no tensor 'v'"));
  EXPECT_THAT(refusal("w", at::empty({2, 5})),
              ::testing::HasSubstr("here: 'w' has shape [5, 2], the model's [2, 5]"));
  EXPECT_THAT(refusal("w", at::empty({2, 5}).t()), ::testing::HasSubstr("in another order"));
}

}  // namespace
}  // namespace lockstep::inline v0::sliced_tensors_test
