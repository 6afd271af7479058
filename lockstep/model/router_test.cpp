#include "lockstep/model/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::inline v0::router_test {
namespace {

using Numbers = std::vector<int64_t>;

TEST(Router, TheLargestSharesAreChosenAndTheLowerNumberAmongEquals) {
  const std::vector<double> shares{0.1,  0.5,  0.4,  0.0,   //
                                   0.25, 0.25, 0.25, 0.25,  //
                                   0.2,  0.3,  0.2,  0.3};
  EXPECT_EQ(choose_experts(shares.data(), 3, 4, 1), (Numbers{1, 0, 1}));
  EXPECT_EQ(choose_experts(shares.data(), 3, 4, 2), (Numbers{1, 2, 0, 1, 1, 3}));
  EXPECT_EQ(choose_experts(shares.data(), 3, 4, 4), (Numbers{1, 2, 0, 3, 0, 1, 2, 3, 1, 3, 0, 2}));
  const std::vector<float> narrow(shares.begin(), shares.end());
  EXPECT_EQ(choose_experts(narrow.data(), 3, 4, 2), (Numbers{1, 2, 0, 1, 1, 3}));
}

TEST(Router, WhatIsNoNumberIsChosenLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> shares{nan, 0.1F, nan, 0.9F, nan, nan, nan, nan};
  EXPECT_EQ(choose_experts(shares.data(), 2, 4, 3), (Numbers{3, 1, 0, 0, 1, 2}));
}

TEST(Router, CapacityIsRoundedUpAndNoMoreThanTheTokens) {
  EXPECT_EQ(expert_capacity(0, 10, 4, 2), 10);
  EXPECT_EQ(expert_capacity(1, 10, 4, 1), 3);
  EXPECT_EQ(expert_capacity(1, 10, 4, 2), 5);
  EXPECT_EQ(expert_capacity(1.25, 8, 4, 2), 5);
  EXPECT_EQ(expert_capacity(0.01, 10, 4, 2), 1);
  EXPECT_EQ(expert_capacity(1e6, 10, 4, 2), 10);
}

TEST(Router, RowsAreSortedByExpertAndThenByToken) {
  // Tokens choose 2 1, 0 2, 2 0; nobody chooses 3.
  const RoutedRows rows = route({2, 1, 0, 2, 2, 0}, 4, 2, 3);
  EXPECT_EQ(rows.counts, (Numbers{2, 1, 3, 0}));
  EXPECT_EQ(rows.tokens, (Numbers{1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(rows.places, (Numbers{3, 2, 0, 4, 5, 1}));
  EXPECT_EQ(rows.left_out, 0);
}

TEST(Router, FirstChoicesTakeTheRoomBeforeSecondOnes) {
  // Expert 0 has room for two: of tokens 0 and 1, whose second choice it is, and 2 and 3, whose first it is, the
  // latter two are in.
  const RoutedRows rows = route({1, 0, 1, 0, 0, 1, 0, 2}, 3, 2, 2);
  EXPECT_EQ(rows.counts, (Numbers{2, 2, 1}));
  EXPECT_EQ(rows.places, (Numbers{2, -1, 3, -1, 0, -1, 1, 4}));
  EXPECT_EQ(rows.tokens, (Numbers{2, 3, 0, 1, 3}));
  EXPECT_EQ(rows.left_out, 3);
}

TEST(Router, AmongFirstChoicesTheEarlierTokensAreIn) {
  const RoutedRows rows = route({0, 0, 0}, 2, 1, 2);
  EXPECT_EQ(rows.places, (Numbers{0, 1, -1}));
  EXPECT_EQ(rows.counts, (Numbers{2, 0}));
  EXPECT_EQ(rows.left_out, 1);
}

}  // namespace
}  // namespace lockstep::inline v0::router_test
