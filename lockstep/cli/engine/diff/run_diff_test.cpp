#include "lockstep/cli/engine/diff/run_diff.h"

#include <gtest/gtest.h>

#include "lockstep/train/callbacks.h"

namespace lockstep::inline v0::engine::run_diff_test {

using Records = std::vector<nlohmann::json>;

nlohmann::json train(int step, double loss, double seconds = 1) {
  return {{"type", "train"},
          {"step", step},
          {"loss", loss},
          {"seconds", seconds},
          {"samples_per_s", 100 / seconds}};
}
nlohmann::json test(int step, double accuracy) {
  return {{"type", "test"}, {"step", step}, {"accuracy", accuracy}, {"best", true}};
}

TEST(RunDiff, TimesDoNotCount) {
  const RunsDiff diff =
      diff_metrics({train(1, 0.5, 1), test(1, 0.9)}, {train(1, 0.5, 2), test(1, 0.9)}, 0);
  EXPECT_EQ(diff.records, 2);
  EXPECT_EQ(diff.different, 0);
  EXPECT_FALSE(diff.first);
  for (const char* key : {"seconds", "samples_per_s", "eval_runtime", "train_steps_per_second"})
    EXPECT_FALSE(counts_in_diff(key)) << key;
  for (const char* key : {"loss", "accuracy", "step", "epochs", "lr", "grad_norm"})
    EXPECT_TRUE(counts_in_diff(key)) << key;
}

// Two runs are equal if a rank was late in only one of them.
TEST(RunDiff, StragglersDoNotCount) {
  auto late = train(1, 0.5);
  late.update({{"straggler_rank", 1},
               {"straggler_late_s", 0.25},
               {"straggler_since_step", 1},
               {"straggler_host", "vm"}});
  EXPECT_FALSE(diff_metrics({train(1, 0.5)}, {late}, 0).first);
  EXPECT_EQ(diff_metrics({train(1, 0.6)}, {late}, 0).first->key, "loss");
}

TEST(RunDiff, TheFirstStepAndValueAreFound) {
  const RunsDiff diff =
      diff_metrics({train(10, 0.5), train(20, 0.4), test(20, 0.9), train(30, 0.3)},
                   {train(10, 0.5), train(20, 0.41), test(20, 0.8), train(30, 0.3)}, 0);
  EXPECT_EQ(diff.records, 4);
  EXPECT_EQ(diff.different, 2);
  ASSERT_TRUE(diff.first);
  EXPECT_EQ(diff.first->step, 20);
  EXPECT_EQ(diff.first->type, "test");
  EXPECT_EQ(diff.first->key, "accuracy");
  EXPECT_EQ(diff.first->a, 0.9);
  EXPECT_EQ(diff.first->b, 0.8);
}

TEST(RunDiff, ToleranceIsOfNumbers) {
  EXPECT_FALSE(diff_metrics({train(1, 1000)}, {train(1, 1000.5)}, 1e-3).first);
  EXPECT_TRUE(diff_metrics({train(1, 1000)}, {train(1, 1002)}, 1e-3).first);
  auto other = test(1, 0.5);
  other["best"] = false;
  EXPECT_EQ(diff_metrics({test(1, 0.5)}, {other}, 1).first->key, "best");
}

TEST(RunDiff, RecordsOfOneRunOnly) {
  const RunsDiff diff =
      diff_metrics({train(1, 1), train(2, 1), train(2, 1)}, {train(1, 1), train(2, 1)}, 0);
  EXPECT_EQ(diff.records, 2);
  EXPECT_EQ(diff.different, 1);
  ASSERT_TRUE(diff.first);
  EXPECT_EQ(diff.first->step, 2);
  EXPECT_EQ(diff.first->key, "");
  EXPECT_TRUE(diff.first->b.is_null());
  EXPECT_FALSE(diff_metrics(Records{}, Records{}, 0).first);
}

}  // namespace lockstep::inline v0::engine::run_diff_test
