#include "lockstep/checkpoint/reshard.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::reshard_test {
namespace {

namespace fs = std::filesystem;

Checkpoint example() {
  Checkpoint checkpoint;
  checkpoint.model = {
      .tensors = {{"a", at::rand({7, 5})}, {"b", at::rand({3})}, {"c", at::rand({40})}},
      .metadata = {{"format", "pt"}}};
  const at::Tensor image = at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  checkpoint.optimizer = Safetensors{.tensors = {{"0.exp_avg", at::rand({7, 5})},
                                                 {"0.step", at::full({}, 9, at::kLong)},
                                                 {"1.exp_avg", image}},
                                     .metadata = {{"optimizer", "AdamW"}}};
  checkpoint.ranks.tensors = {{"cpu_generator", at::ones({2, 8})}};
  checkpoint.trainer_json = "{\"step\": 9}";
  checkpoint.config_json = "{}";
  checkpoint.tensors["ema"] = {.tensors = {{"a", at::rand({2})}}};
  checkpoint.files = {{"vocab.txt", "a\n"}};
  return checkpoint;
}

void expect_equal(const Safetensors& a, const Safetensors& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_NE(b.find(name), nullptr) << name;
    EXPECT_TRUE(tensor.equal(*b.find(name))) << name;
  }
}

void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  expect_equal(a.model, b.model);
  expect_equal(a.optimizer.whole(), b.optimizer.whole());
  EXPECT_EQ(a.optimizer.metadata, b.optimizer.metadata);
  expect_equal(a.ranks, b.ranks);
  expect_equal(a.tensors.at("ema"), b.tensors.at("ema"));
  EXPECT_EQ(a.trainer_json, b.trainer_json);
  EXPECT_EQ(a.files, b.files);
}

TEST(Reshard, EveryNumberOfFilesHoldsTheSame) {
  const TestDirectory dir;
  const Checkpoint whole = example();
  write_checkpoint(dir / "whole", whole);
  fs::path from = dir / "whole";
  for (const int files : {1, 2, 3, 4, 50, 200, 5, 1}) {
    const fs::path to = dir / std::to_string(files);
    reshard_checkpoint(from, to, files);
    expect_equal(read_checkpoint(to), whole);
    for (const auto& [file, verdict] : verify_checkpoint(to))
      EXPECT_EQ(verdict, FileVerdict::kGood) << file;
    // There are at most 120 elements, and three tensors of the model.
    EXPECT_EQ(fs::exists(to / "optimizer.safetensors"), files == 1 || files == 200) << files;
    EXPECT_EQ(fs::exists(to / "model.safetensors"), files == 1) << files;
    from = to;
  }
  // The files equal those of one rank byte for byte.
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "checksums.json"})
    EXPECT_EQ(dir.read(std::string("1/") + file), dir.read(std::string("whole/") + file)) << file;
}

TEST(Reshard, RefusesWhatCannotBe) {
  const TestDirectory dir;
  EXPECT_THROW(reshard_checkpoint(dir / "none", dir / "to", 2), CheckpointError);
  write_checkpoint(dir / "whole", example());
  EXPECT_THROW(reshard_checkpoint(dir / "whole", dir / "to", 0), InvalidArgument);
  EXPECT_THROW(reshard_checkpoint(dir / "whole", dir / "to", 100000), InvalidArgument);
  dir.write("whole/optimizer.safetensors", "damaged");
  EXPECT_THROW(reshard_checkpoint(dir / "whole", dir / "to", 2), CheckpointError);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"whole"});
}

// The new checkpoint may be given to others, who could not read the link's target.
TEST(Reshard, LinksOutOfTheFolderAreNotFollowed) {
  const TestDirectory dir;
  write_checkpoint(dir / "whole", example());
  dir.write("outside.json", "{}");
  fs::remove(dir / "whole" / "config.json");
  fs::create_symlink(dir / "outside.json", dir / "whole" / "config.json");
  EXPECT_THAT(
      message_of<CheckpointError>([&] { reshard_checkpoint(dir / "whole", dir / "to", 1); }),
      ::testing::HasSubstr("whole/config.json: is a symbolic link out of the checkpoint"));
  EXPECT_FALSE(fs::exists(dir / "to"));
  // A link within the folder is as good as the file, and so is one to the whole folder.
  fs::remove(dir / "whole" / "config.json");
  dir.write("whole/kept.json", "{}");
  fs::create_symlink("kept.json", dir / "whole" / "config.json");
  fs::create_directory_symlink("whole", dir / "link");
  reshard_checkpoint(dir / "link", dir / "to", 1);
  EXPECT_EQ(dir.read("to/config.json"), "{}");
}

}  // namespace
}  // namespace lockstep::inline v0::reshard_test
