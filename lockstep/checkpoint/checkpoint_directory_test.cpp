#include "lockstep/checkpoint/checkpoint_directory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::checkpoint_directory_test {

// A checkpoint whose parts all carry the same number.
Checkpoint numbered(int number) {
  Checkpoint checkpoint;
  checkpoint.model.tensors = {{"w", at::full({8, 1024}, number, at::kInt)}};
  checkpoint.optimizer =
      Safetensors{.tensors = {{"0.momentum_buffer", at::full({8, 1024}, number, at::kInt)}}};
  checkpoint.trainer_json = std::to_string(number);
  checkpoint.config_json = "{}";
  return checkpoint;
}

int number_of(const Checkpoint& checkpoint) {
  const int number = std::stoi(checkpoint.trainer_json);
  EXPECT_TRUE(checkpoint.model.find("w")->eq(number).all().item<bool>());
  EXPECT_TRUE(
      checkpoint.optimizer.find("0.momentum_buffer")->whole().eq(number).all().item<bool>());
  return number;
}

TEST(CheckpointDirectory, IsReplacedAsAWhole) {
  const TestDirectory dir;
  EXPECT_FALSE(checkpoint_exists(dir / "last"));
  write_checkpoint(dir / "last", numbered(1));
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), 1);
  write_checkpoint(dir / "last/", numbered(2));
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), 2);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"last"});
  EXPECT_TRUE(checkpoint_exists(dir / "last"));
}

TEST(CheckpointDirectory, FailureLeavesTheFormerOne) {
  const TestDirectory dir;
  write_checkpoint(dir / "last", numbered(1));
  Checkpoint bad = numbered(2);
  bad.ranks.tensors = {{"", at::ones({1})}};
  EXPECT_THROW(write_checkpoint(dir / "last", bad), InvalidArgument);
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), 1);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"last"});
}

TEST(CheckpointDirectory, LeftoversOfAKilledWriterAreIgnoredAndRemoved) {
  const TestDirectory dir;
  write_checkpoint(dir / "last", numbered(1));
  std::filesystem::create_directory(dir / "last.partial");
  dir.write("last.partial/model.safetensors", "half");
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), 1);
  write_checkpoint(dir / "last", numbered(2));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"last"});
  // The only such moment without RENAME_EXCHANGE.
  std::filesystem::rename(dir / "last", dir / "last.previous");
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), 2);
}

TEST(CheckpointDirectory, MissingAndDamagedAreNamed) {
  const TestDirectory dir;
  EXPECT_THROW(read_checkpoint(dir / "none"), CheckpointError);
  write_checkpoint(dir / "last", numbered(1));
  std::filesystem::remove(dir / "last/trainer.json");
  EXPECT_THROW(read_checkpoint(dir / "last"), CheckpointError);
  EXPECT_NO_THROW(read_checkpoint(dir / "last", CheckpointParts::kModelAndConfig));
}

TEST(CheckpointDirectory, FurtherPartsComeBack) {
  const TestDirectory dir;
  Checkpoint checkpoint = numbered(3);
  checkpoint.tensors["ema"].tensors = {{"w", at::full({3}, 5.0)}};
  checkpoint.files = {{"scaler.json", "{\"scale\": 2}"}, {"vocab.txt", std::string("a\0\n", 3)}};
  write_checkpoint(dir / "c", checkpoint);
  const Checkpoint all = read_checkpoint(dir / "c");
  EXPECT_EQ(all.files, checkpoint.files);
  EXPECT_TRUE(all.tensors.at("ema").find("w")->eq(5).all().item<bool>());
  EXPECT_EQ(all.tensors.size(), 1u);
  const Checkpoint some = read_checkpoint(dir / "c", CheckpointParts::kModelAndConfig);
  EXPECT_EQ(some.files, checkpoint.files);
  EXPECT_TRUE(some.tensors.empty());
  for (const char* name :
       {"", "a/b", "..", "model.safetensors", "checksums.json", "x.partial", "t.safetensors"}) {
    Checkpoint bad = numbered(4);
    bad.files[name] = "";
    EXPECT_THROW(write_checkpoint(dir / "c", bad), InvalidArgument) << name;
  }
  Checkpoint bad = numbered(4);
  bad.tensors["model"] = {};
  EXPECT_THROW(write_checkpoint(dir / "c", bad), InvalidArgument);
  EXPECT_EQ(number_of(read_checkpoint(dir / "c")), 3);
}

// Whichever file has a flipped bit, the error names it.
TEST(CheckpointDirectory, EveryFlippedBitIsFound) {
  const TestDirectory dir;
  Checkpoint checkpoint = numbered(1);
  checkpoint.files["vocab.txt"] = "words";
  write_checkpoint(dir / "c", checkpoint);
  for (const auto& [name, verdict] : verify_checkpoint(dir / "c"))
    EXPECT_EQ(verdict, FileVerdict::kGood) << name;
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "ranks.safetensors",
                                 "trainer.json", "config.json", "vocab.txt", "checksums.json"}) {
    const std::string whole = dir.read("c/" + name);
    for (const size_t at : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      dir.write("c/" + name, bad);
      const std::string message = message_of<CheckpointError>([&] { read_checkpoint(dir / "c"); });
      EXPECT_THAT(message, ::testing::HasSubstr("damaged")) << name << ' ' << at;
      EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("\n")));
      if (name != "checksums.json") {
        EXPECT_THAT(message, ::testing::StartsWith((dir / ("c/" + name)).string() + ": "));
        EXPECT_EQ(verify_checkpoint(dir / "c").at(name), FileVerdict::kDamaged);
      }
    }
    dir.write("c/" + name, whole);
  }
  EXPECT_EQ(number_of(read_checkpoint(dir / "c")), 1);
}

TEST(CheckpointDirectory, WithoutChecksumsIsTakenAsItIs) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", numbered(2));
  std::filesystem::remove(dir / "c/checksums.json");
  EXPECT_EQ(number_of(read_checkpoint(dir / "c")), 2);
  EXPECT_TRUE(verify_checkpoint(dir / "c").empty());
}

TEST(CheckpointDirectory, TensorsOutliveTheirReplacement) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", numbered(1));
  const Checkpoint before = read_checkpoint(dir / "c");
  write_checkpoint(dir / "c", numbered(2));
  EXPECT_EQ(number_of(before), 1);
  std::filesystem::remove_all(dir / "c");
  EXPECT_EQ(number_of(before), 1);
}

}  // namespace lockstep::inline v0::checkpoint_directory_test
