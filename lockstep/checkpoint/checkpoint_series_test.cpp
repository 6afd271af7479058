#include "lockstep/checkpoint/checkpoint_series.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/refused_calls.h"

namespace lockstep::inline v0::checkpoint_series_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SurplusCheckpoints, KeepsTheLatestAndWhatMustStay) {
  const std::vector<int64_t> steps{10, 20, 30, 40, 50};
  EXPECT_THAT(surplus_checkpoints(steps, 0, {}), IsEmpty());
  EXPECT_THAT(surplus_checkpoints(steps, 5, {}), IsEmpty());
  EXPECT_THAT(surplus_checkpoints(steps, 2, {}), ElementsAre(10, 20, 30));
  EXPECT_THAT(surplus_checkpoints(steps, 2, {50}), ElementsAre(10, 20, 30));
  EXPECT_THAT(surplus_checkpoints(steps, 3, {10, 50}), ElementsAre(20, 30));
  EXPECT_THAT(surplus_checkpoints(steps, 2, {10, 50}), ElementsAre(20, 30, 40));
  EXPECT_THAT(surplus_checkpoints(steps, 1, {10, 50}), ElementsAre(20, 30, 40));
  EXPECT_THAT(surplus_checkpoints(steps, 1, {20}), ElementsAre(10, 30, 40, 50));
  EXPECT_THAT(surplus_checkpoints({50, 10, 30}, 1, {}), ElementsAre(10, 30));
  EXPECT_THAT(surplus_checkpoints(steps, 2, {99}), ElementsAre(10, 20, 30));
  EXPECT_THAT(surplus_checkpoints({}, 2, {1}), IsEmpty());
}

Checkpoint of_step(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.model.tensors = {{"w", at::full({2}, step)}};
  checkpoint.trainer_json = std::to_string(step);
  checkpoint.config_json = "{}";
  return checkpoint;
}

void save(const TestDirectory& dir, int64_t step, bool best, int64_t limit) {
  write_checkpoint_of_step(dir.path(), step, of_step(step), {.best = best, .limit = limit});
}

std::string trainer_of(const fs::path& path) {
  return read_checkpoint(path).trainer_json;
}

TEST(CheckpointSeries, KeepsBestAndLast) {
  const TestDirectory dir;
  EXPECT_THAT(checkpoint_steps(dir / "none"), IsEmpty());
  save(dir, 5, true, 2);
  save(dir, 10, false, 2);
  EXPECT_THAT(checkpoint_steps(dir.path()), ElementsAre(5, 10));
  save(dir, 100, false, 2);
  EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-100", "checkpoint-5", "last"));
  EXPECT_EQ(trainer_of(dir / "best"), "5");
  EXPECT_EQ(trainer_of(dir / "last"), "100");
  EXPECT_EQ(linked_step(dir.path(), "best"), 5);
  save(dir, 150, true, 1);
  EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-150", "last"));
  EXPECT_EQ(trainer_of(dir / "best"), "150");
  save(dir, 150, false, 1);  // again, as a resumed run does
  EXPECT_EQ(trainer_of(dir / "last"), "150");
  EXPECT_EQ(linked_step(dir.path(), "elsewhere"), std::nullopt);
}

TEST(CheckpointSeries, FormerDirectoriesBecomeLinks) {
  const TestDirectory dir;
  write_checkpoint(dir / "last", of_step(1));
  write_checkpoint(dir / "best", of_step(1));
  save(dir, 2, true, 0);
  EXPECT_EQ(trainer_of(dir / "last"), "2");
  EXPECT_TRUE(fs::is_symlink(dir / "last"));
  EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-2", "last"));
  // Conversely, for a trainer that keeps only these two.
  write_checkpoint(dir / "last", of_step(3));
  EXPECT_EQ(trainer_of(dir / "last"), "3");
  EXPECT_EQ(trainer_of(dir / "checkpoint-2"), "2");
  EXPECT_FALSE(fs::is_symlink(dir / "last"));
}

TEST(CheckpointSeries, LeftoversAndStrangersAreNoCheckpoints) {
  const TestDirectory dir;
  fs::create_directory(dir / "checkpoint-7.partial");
  fs::create_directory(dir / "checkpoint-8");  // without a model
  fs::create_directory(dir / "checkpoint-x");
  save(dir, 3, false, 1);
  EXPECT_THAT(checkpoint_steps(dir.path()), ElementsAre(3));
  EXPECT_THAT(dir.names(), ElementsAre("checkpoint-3", "checkpoint-8", "checkpoint-x", "last"));
}

constexpr const char* kNoFilter = "this process may not refuse itself system calls (seccomp)";

TEST(CheckpointSeries, WhereLinksCannotBeMadeSmallFilesStandForThem) {
  for (const int errnum : {EPERM, EOPNOTSUPP, ENOSYS}) {
    const TestDirectory dir;
    const bool ran = testing::with_refused(testing::refused_links(errnum), [&] {
      try_series(dir.path());
      EXPECT_THAT(dir.names(), IsEmpty());
      save(dir, 5, true, 2);
      save(dir, 10, false, 2);
      save(dir, 100, false, 2);
    });
    if (!ran) GTEST_SKIP() << kNoFilter;
    EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-100", "checkpoint-5", "last"));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir / "last")));
    EXPECT_EQ(trainer_of(dir / "last"), "100");
    EXPECT_EQ(trainer_of(dir / "best"), "5");
    EXPECT_TRUE(checkpoint_exists(dir / "best"));
    EXPECT_EQ(checkpoint_at(dir / "best"), dir / "checkpoint-5");
    EXPECT_EQ(linked_step(dir.path(), "best"), 5);
    save(dir, 150, true, 1);  // in another directory, with links
    EXPECT_TRUE(fs::is_symlink(dir / "last"));
    EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-150", "last"));
  }
}

// gVisor, WSL 1, seccomp profiles and old kernels refuse it, whatever the names are.
TEST(CheckpointSeries, WhereDirectoriesCannotBeExchangedTheyAreRenamed) {
  for (const int errnum : {EINVAL, ENOSYS, EPERM}) {
    const TestDirectory dir;
    const bool ran = testing::with_refused({{SYS_renameat2, errnum}}, [&] {
      try_series(dir.path());
      EXPECT_THAT(dir.names(), IsEmpty());
      save(dir, 2, true, 0);
      save(dir, 2, true, 0);  // replaces a former one
      EXPECT_EQ(trainer_of(dir / "last"), "2");
      // Directories in the links' places, and links in a directory's place.
      const TestDirectory other;
      write_checkpoint(other / "last", of_step(1));
      write_checkpoint(other / "last", of_step(2));
      EXPECT_EQ(trainer_of(other / "last"), "2");
      save(other, 3, false, 0);
      EXPECT_TRUE(fs::is_symlink(other / "last"));
      EXPECT_EQ(trainer_of(other / "last"), "3");
      write_checkpoint(other / "last", of_step(4));
      EXPECT_EQ(trainer_of(other / "last"), "4");
      EXPECT_THAT(other.names(), ElementsAre("checkpoint-3", "last"));
    });
    if (!ran) GTEST_SKIP() << kNoFilter;
    EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-2", "last"));
  }
}

// Killed between two renames, if directories cannot be exchanged.
TEST(CheckpointSeries, ACheckpointBetweenTwoNamesIsFoundByEveryName) {
  for (const bool links : {true, false}) {
    const TestDirectory dir;
    const auto save_both = [&] {
      save(dir, 5, true, 0);
      save(dir, 7, false, 0);
    };
    if (links)
      save_both();
    else if (!testing::with_refused(testing::refused_links(EPERM), save_both))
      GTEST_SKIP() << kNoFilter;
    for (const char* name : {"checkpoint-5", "checkpoint-7"})
      fs::rename(dir / name, dir / (std::string(name) + ".previous"));
    EXPECT_EQ(trainer_of(dir / "checkpoint-5"), "5");
    EXPECT_EQ(trainer_of(dir / "best"), "5") << links;
    EXPECT_EQ(trainer_of(dir / "last"), "7") << links;
    EXPECT_TRUE(checkpoint_exists(dir / "best/"));
    EXPECT_THAT(checkpoint_steps(dir.path()), ElementsAre(5, 7));
    save(dir, 7, false, 0);
    save(dir, 9, false, 2);  // the next one gives the former its name back
    EXPECT_THAT(dir.names(), ElementsAre("best", "checkpoint-5", "checkpoint-9", "last"));
    EXPECT_EQ(trainer_of(dir / "best"), "5");
  }
}

// The same without a kill: the checkpoint of `last` has another name for a moment.
TEST(CheckpointSeries, IsReadWhileItIsRenamed) {
  const TestDirectory dir;
  save(dir, 5, false, 0);
  const bool ran = testing::with_refused({{SYS_renameat2, EINVAL}}, [&] {
    std::atomic<bool> done = false;
    std::thread writer([&] {
      for (int i = 0; i < 50; ++i) write_checkpoint(checkpoint_of_step(dir.path(), 5), of_step(5));
      done = true;
    });
    while (!done) EXPECT_NO_THROW(trainer_of(dir / "last"));
    writer.join();
  });
  if (!ran) GTEST_SKIP() << kNoFilter;
}

TEST(CheckpointSeries, AFormerOneThatAKilledWriterLeftIsRemoved) {
  const TestDirectory dir;
  save(dir, 3, false, 0);
  fs::copy(dir / "checkpoint-3", dir / "checkpoint-3.previous");
  save(dir, 4, false, 0);
  EXPECT_THAT(dir.names(), ElementsAre("checkpoint-3", "checkpoint-4", "last"));
}

TEST(CheckpointSeries, WhatAKilledTrialLeftIsRemoved) {
  const TestDirectory dir;
  for (const char* name : {"checkpoint-trial-0a", "checkpoint-trial-0b.partial"}) {
    fs::create_directory(dir / name);
    dir.write(std::string(name) + "/file", "trial");
  }
  save(dir, 3, false, 0);
  remove_trials(dir.path());
  EXPECT_THAT(dir.names(), ElementsAre("checkpoint-3", "last"));
  EXPECT_NO_THROW(remove_trials(dir / "none"));
}

TEST(CheckpointSeries, ACopyWithoutLinksHasItsLatest) {
  const TestDirectory dir;
  EXPECT_FALSE(checkpoint_exists(dir / "last"));
  save(dir, 9, true, 0);
  save(dir, 10, false, 0);
  for (const char* link : {"last", "best"}) fs::remove(dir / link);
  for (const char* last : {"last", "last/"}) {
    EXPECT_EQ(checkpoint_at(dir / last), dir / "checkpoint-10");
    EXPECT_EQ(trainer_of(dir / last), "10");
  }
  EXPECT_FALSE(checkpoint_exists(dir / "best")) << "nothing here says which it was";
  dir.write("last", "of somebody else\n");
  EXPECT_FALSE(checkpoint_exists(dir / "last"));
}

TEST(CheckpointSeries, AFolderThatCannotKeepCheckpointsIsKnownBefore) {
  const TestDirectory dir;
  EXPECT_THROW(try_series(dir / "none"), SystemError);
  const bool ran = testing::with_refused(
      testing::refused_renames(EROFS), [&] { EXPECT_THROW(try_series(dir.path()), SystemError); });
  if (!ran) GTEST_SKIP() << kNoFilter;
  EXPECT_THAT(dir.names(), IsEmpty());
}

}  // namespace lockstep::inline v0::checkpoint_series_test
