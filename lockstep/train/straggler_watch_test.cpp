#include "lockstep/train/straggler_watch.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::straggler_watch_test {

constexpr StragglerOptions kAtOnce{.windows = 1, .least_steps = 1};

std::vector<RankWindow> windows(const std::vector<double>& seconds, int64_t steps = 10) {
  std::vector<RankWindow> result;
  for (const double own : seconds) result.push_back({.seconds = own, .steps = steps});
  return result;
}

TEST(StragglerWatch, ARankThatStaysLateIsToldOnceWithTheStepSinceWhen) {
  StragglerWatch watch;
  EXPECT_FALSE(watch.add(windows({0.1, 0.1, 0.1, 0.1}), 10).begins);
  EXPECT_FALSE(watch.add(windows({0.1, 0.1, 0.2, 0.1}), 20).begins) << "one window may be chance";
  EXPECT_FALSE(watch.straggler());
  const auto begins = watch.add(windows({0.1, 0.11, 0.3, 0.1}), 30).begins;
  ASSERT_TRUE(begins);
  EXPECT_EQ(begins->rank, 2);
  EXPECT_EQ(begins->since_step, 11);
  EXPECT_DOUBLE_EQ(begins->others, 0.1);
  EXPECT_DOUBLE_EQ(begins->late(), 0.2);
  const auto later = watch.add(windows({0.1, 0.1, 0.25, 0.1}), 40);
  EXPECT_FALSE(later.begins || later.ends);
  EXPECT_EQ(watch.straggler()->since_step, 11);
  EXPECT_DOUBLE_EQ(watch.straggler()->seconds, 0.25);
}

TEST(StragglerWatch, ItEndsBelowHalfTheWayAndMayBeginAnew) {
  StragglerWatch watch(kAtOnce);
  EXPECT_TRUE(watch.add(windows({0.1, 0.16, 0.1}), 10).begins);
  EXPECT_FALSE(watch.add(windows({0.1, 0.13, 0.1}), 20).ends) << "1.3 is above 1.25";
  const auto ends = watch.add(windows({0.1, 0.12, 0.1}), 30).ends;
  ASSERT_TRUE(ends);
  EXPECT_EQ(ends->rank, 1);
  EXPECT_EQ(ends->since_step, 1);
  EXPECT_FALSE(watch.straggler());
  const auto begins = watch.add(windows({0.1, 0.2, 0.1}), 40).begins;
  ASSERT_TRUE(begins);
  EXPECT_EQ(begins->since_step, 31);
}

TEST(StragglerWatch, AnotherRankIsToldWhenTheFirstIsQuickAgain) {
  StragglerWatch watch(kAtOnce);
  EXPECT_TRUE(watch.add(windows({0.3, 0.1, 0.1, 0.1}), 10).begins);
  const auto change = watch.add(windows({0.1, 0.1, 0.1, 0.3}), 20);
  ASSERT_TRUE(change.ends && change.begins);
  EXPECT_EQ(change.ends->rank, 0);
  EXPECT_EQ(change.begins->rank, 3);
}

TEST(StragglerWatch, NobodyIsLateWhereAllTakeLongOrTheDifferenceIsSmall) {
  StragglerWatch watch(kAtOnce);
  EXPECT_FALSE(watch.add(windows({5, 5.1, 4.9, 5}), 10).begins);
  EXPECT_FALSE(watch.add(windows({0.001, 0.0025, 0.001, 0.001}), 20).begins) << "1.5 ms";
  EXPECT_FALSE(watch.add(windows({9}), 30).begins) << "alone";
}

TEST(StragglerWatch, TwoRanksAreComparedWithEachOther) {
  StragglerWatch watch(kAtOnce);
  const auto begins = watch.add(windows({0.1, 0.4}), 10).begins;
  ASSERT_TRUE(begins);
  EXPECT_EQ(begins->rank, 1);
}

TEST(StragglerWatch, ShortWindowsArePutTogether) {
  StragglerWatch watch({.windows = 1, .least_steps = 4});
  for (const int64_t step : {1, 2, 3})
    EXPECT_FALSE(watch.add(windows({0.1, 0.5}, 1), step).begins) << step;
  const auto begins = watch.add(windows({0.1, 0.1}, 1), 4).begins;
  ASSERT_TRUE(begins);
  EXPECT_EQ(begins->since_step, 1);
  EXPECT_DOUBLE_EQ(begins->seconds, 0.4);
}

TEST(StragglerWatch, ChanceIsNoStraggler) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  StragglerWatch watch(kAtOnce);
  for (int i = 1; i <= 10000; ++i) {
    const auto change =
        watch.add(windows({noise(random), noise(random), noise(random), noise(random)}), 10L * i);
    ASSERT_FALSE(change.begins) << i;
  }
}

TEST(StragglerWatch, OnlyWhoStaysSoSlowIsEvicted) {
  StragglerWatch watch({.windows = 1, .least_steps = 1, .evict = 3, .evict_windows = 3});
  const auto slow = [&](double seconds, int64_t step) {
    watch.add(windows({0.1, seconds, 0.1}), step);
    return watch.evicted();
  };
  EXPECT_FALSE(slow(0.4, 10) || slow(0.4, 20) || slow(0.2, 30)) << "late, but not so slow";
  EXPECT_FALSE(slow(0.4, 40) || slow(0.4, 50));
  EXPECT_EQ(slow(0.4, 60), 1);
  StragglerWatch reports(kAtOnce);
  for (int64_t step = 10; step < 200; step += 10) reports.add(windows({0.1, 9, 0.1}), step);
  EXPECT_FALSE(reports.evicted()) << "nobody has allowed it";
}

TEST(StragglerWatch, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(StragglerWatch({.slower = 1}), InvalidArgument);
  EXPECT_THROW(StragglerWatch({.windows = 0}), InvalidArgument);
  EXPECT_THROW(StragglerWatch({.evict = 0.5}), InvalidArgument);
}

TEST(StragglerWatch, TheTextsSayWhoWhereHowLateAndSinceWhen) {
  const Straggler straggler{.rank = 2, .seconds = 0.152, .others = 0.048, .since_step = 101};
  EXPECT_EQ(begins_text(straggler, "node7"),
            "rank 2 (on node7) is slower than the others since step 101: its own work takes 0.152 "
            "s a step, theirs 0.048 s");
  EXPECT_EQ(
      ends_text(straggler, "node7", 300),
      "rank 2 (on node7) is as fast as the others again by step 300; it had been slower since "
      "step 101");
}

}  // namespace lockstep::inline v0::straggler_watch_test
