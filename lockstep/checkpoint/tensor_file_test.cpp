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

namespace lockstep::inline v0::tensor_file_test {

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
  dir.write("i.json", R"({"weight_map":{"x":"a","w":"b"}})");
  EXPECT_EQ(read_tensor_file(dir / "i.json").kind, TensorFileKind::kShardedPt);
}

TEST(TensorFile, DirectoriesAreReadByWhatTheyHold) {
  const TestDirectory dir;
  const auto error = [&] {
    return message_of<CheckpointError>([&] { read_tensor_file(dir.path()); });
  };
  EXPECT_THAT(error(), HasSubstr("holds no model.safetensors"));
  EXPECT_FALSE(find_tensor_file(dir.path()).has_value());
  const std::string pt = pt_archive(pickled_dict(pickled(PickledTensor{})));
  const auto expect_read = [&](const std::string& name, TensorFileKind kind) {
    const TensorFile file = read_tensor_file(dir.path());
    EXPECT_EQ(file.path, dir / name);
    EXPECT_EQ(file.kind, kind);
    EXPECT_EQ(file.contents.tensors.size(), 1u);
    EXPECT_EQ(find_tensor_file(dir.path()).value(), file.path);
    dir.write("checksums.json", format_checksums({{name, {1, 2}}}));
    EXPECT_THAT(error(), HasSubstr(name + ": has ")) << "compared with its checksum";
    std::filesystem::remove(dir / "checksums.json");
  };
  // Each takes precedence over the existing ones.
  dir.write("1.bin", pt);
  dir.write("pytorch_model.bin.index.json", R"({"weight_map":{"w":"1.bin"}})");
  expect_read("pytorch_model.bin.index.json", TensorFileKind::kShardedPt);
  dir.write("pytorch_model.bin", pt);
  expect_read("pytorch_model.bin", TensorFileKind::kPt);
  write_safetensors(dir / "1.safetensors", {{"x", at::ones({2})}});
  dir.write("model.safetensors.index.json", R"({"weight_map":{"x":"1.safetensors"}})");
  expect_read("model.safetensors.index.json", TensorFileKind::kShardedSafetensors);
  write_safetensors(dir / "model.safetensors", {{"x", at::ones({2})}});
  expect_read("model.safetensors", TensorFileKind::kSafetensors);
}

// load() reads files that Python's torch.save wrote.
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
  // Several files, too.
  const TestDirectory dir;
  std::filesystem::copy(seeds / "wrapped.pt", dir / "1.bin");
  dir.write("pytorch_model.bin.index.json",
            R"({"weight_map":{"module.weight":"1.bin","module.bias":"1.bin"}})");
  linear->weight.data().zero_();
  load(linear, dir.path());
  EXPECT_TRUE(at::equal(linear->weight, weight));
}

}  // namespace lockstep::inline v0::tensor_file_test
