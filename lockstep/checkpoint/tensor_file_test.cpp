#include "lockstep/checkpoint/tensor_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/internal/test_zip.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::tensor_file_test {

using ::testing::HasSubstr;

TEST(TensorFile, KindIsToldByTheBytes) {
  const TestDirectory dir;
  write_safetensors(dir / "a", {{"x", at::ones({2})}});
  EXPECT_EQ(read_tensor_file(dir / "a").kind, TensorFileKind::kSafetensors);
  dir.write("b", pt_archive(pickled_dict(pickled(PickledTensor{}))));
  const TensorFile pt = read_tensor_file(dir / "b");
  EXPECT_EQ(pt.kind, TensorFileKind::kPt);
  EXPECT_EQ(pt.contents.find("w")->numel(), 6);
  dir.write("i.json", R"({"weight_map":{"x":"a"}})");
  EXPECT_EQ(read_tensor_file(dir / "i.json").kind, TensorFileKind::kShardedSafetensors);
}

TEST(TensorFile, DirectoriesAreReadByWhatTheyHold) {
  const TestDirectory dir;
  const auto error = [&] {
    return message_of<CheckpointError>([&] { read_tensor_file(dir.path()); });
  };
  EXPECT_THAT(error(), HasSubstr("holds no model.safetensors"));
  dir.write("pytorch_model.bin", pt_archive(pickled_dict(pickled(PickledTensor{}))));
  EXPECT_EQ(read_tensor_file(dir.path()).path, dir / "pytorch_model.bin");
  write_safetensors(dir / "model.safetensors", {{"x", at::ones({2})}});
  EXPECT_EQ(read_tensor_file(dir.path()).path, dir / "model.safetensors");
  dir.write("checksums.json", format_checksums({{"model.safetensors", {1, 2}}}));
  EXPECT_THAT(error(), HasSubstr("the file is damaged"));
}

// load() takes what Python's torch.save wrote.
TEST(TensorFile, ModuleFromPython) {
  torch::nn::Linear linear(2, 3);
  const std::filesystem::path seeds =
      std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/seeds/pt_fuzz";
  load(linear, seeds / "linear.pt");
  const at::Tensor weight = linear->weight.detach().clone();
  linear->weight.data().zero_();
  load(linear, seeds / "wrapped.pt");
  EXPECT_TRUE(at::equal(linear->weight, weight));
  EXPECT_NE(weight.abs().max().item<float>(), 0);
}

}  // namespace lockstep::tensor_file_test
