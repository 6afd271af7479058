#include "lockstep/plan/machine/late_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep::inline v0::plan::late_rank_test {
namespace {

TEST(LateRank, TheLargestOfNormalValuesIsAsTablesSay) {
  EXPECT_EQ(expected_largest(1), 0);
  // Harter, Expected values of normal order statistics (1961).
  EXPECT_NEAR(expected_largest(2), 0.564, 0.03);
  EXPECT_NEAR(expected_largest(4), 1.029, 0.03);
  EXPECT_NEAR(expected_largest(8), 1.424, 0.03);
  EXPECT_NEAR(expected_largest(64), 2.386, 0.05);
}

// Ranks as random walks, which wait for each other so many times.
TEST(LateRank, AgreesWithAWalk) {
  constexpr double kJitter = 0.01, kStep = 1e-4;
  constexpr int kSteps = 160, kTurns = 2000;
  std::mt19937 random(7);
  std::normal_distribution<double> off(0, kJitter * std::sqrt(kStep));
  const auto walked = [&](int ranks, int waits) {
    double late = 0;
    for (int turn = 0; turn < kTurns * waits; ++turn) {
      double slowest = -1;
      for (int rank = 0; rank < ranks; ++rank) {
        double time = 0;
        for (int step = 0; step < kSteps / waits; ++step) time += off(random);
        slowest = rank == 0 ? time : std::max(slowest, time);
      }
      late += slowest;
    }
    return late / kTurns;
  };
  const double seconds = kStep * kSteps;
  for (const int ranks : {2, 4})
    for (const int waits : {1, 16})
      EXPECT_NEAR(late_time(kJitter, seconds, waits, ranks) / walked(ranks, waits), 1, 0.08)
          << ranks << " ranks, " << waits << " waits";
}

TEST(LateRank, NobodyWaitsForAnythingAlone) {
  EXPECT_EQ(late_time(0.01, 1, 10, 1), 0);
  EXPECT_EQ(late_time(0, 1, 10, 4), 0);
  EXPECT_EQ(late_time(0.01, 1, 0, 4), 0);
}

}  // namespace
}  // namespace lockstep::inline v0::plan::late_rank_test
