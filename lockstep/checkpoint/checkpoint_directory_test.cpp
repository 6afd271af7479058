#include "lockstep/checkpoint/checkpoint_directory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::checkpoint_directory_test {

// A checkpoint all of whose parts carry the same number.
Checkpoint numbered(int number) {
  Checkpoint checkpoint;
  checkpoint.model.tensors = {{"w", at::full({8, 1024}, number, at::kInt)}};
  checkpoint.optimizer.tensors = {{"0.momentum_buffer", at::full({8, 1024}, number, at::kInt)}};
  checkpoint.trainer_json = std::to_string(number);
  checkpoint.config_json = "{}";
  return checkpoint;
}

int number_of(const Checkpoint& checkpoint) {
  const int number = std::stoi(checkpoint.trainer_json);
  EXPECT_TRUE(checkpoint.model.find("w")->eq(number).all().item<bool>());
  EXPECT_TRUE(checkpoint.optimizer.find("0.momentum_buffer")->eq(number).all().item<bool>());
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
  // The one moment of the way without RENAME_EXCHANGE.
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

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define LOCKSTEP_NO_FORK 1
#endif
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_NO_FORK 1
#endif
#if !defined(LOCKSTEP_NO_FORK)
// A writer that is killed at any moment leaves a whole checkpoint, and the next writer can go on.
TEST(CheckpointDirectory, KilledWriterLeavesAWholeCheckpoint) {
  const TestDirectory dir;
  write_checkpoint(dir / "last", numbered(0));
  int last = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child =
        ::fork();  // the child only fills and writes tensors: few enough elements for one thread
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int number = last + 1;; ++number) write_checkpoint(dir / "last", numbered(number));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round + 3));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int found = number_of(read_checkpoint(dir / "last"));
    EXPECT_GE(found, last);
    last = found;
  }
  write_checkpoint(dir / "last", numbered(-1));
  EXPECT_EQ(number_of(read_checkpoint(dir / "last")), -1);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"last"});
}
#endif

}  // namespace lockstep::checkpoint_directory_test
