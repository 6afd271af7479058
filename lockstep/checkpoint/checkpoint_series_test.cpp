#include "lockstep/checkpoint/checkpoint_series.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/internal/test_support.h"

namespace lockstep::checkpoint_series_test {

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
  // And the other way round, for a trainer that keeps these two alone.
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

}  // namespace lockstep::checkpoint_series_test
