#include "lockstep/recover/rollback.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/recover/holders.h"

namespace lockstep::inline v0::recover::rollback_test {

KeptStates whole(int64_t former, int64_t latest) {
  return {.own = {former, latest}, .copy = {former, latest}, .begun = true};
}

TEST(Rollback, KeepersAreOnAnotherHostWhereThereIsOne) {
  for (const auto& [size, local] : {std::pair{2, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
    std::set<int> holders;
    for (int r = 0; r < size; ++r) {
      const int holder = replica_holder(r, size, local);
      EXPECT_NE(holder / local, r / local) << size << " ranks, " << r;
      EXPECT_EQ(replicated_rank(holder, size, local), r);
      holders.insert(holder);
    }
    EXPECT_EQ(holders.size(), static_cast<size_t>(size)) << "each keeps one";
  }
  EXPECT_EQ(replica_holder(2, 3, 3), 0) << "one host: the next rank";
  EXPECT_EQ(replicated_rank(0, 3, 3), 2);
  EXPECT_EQ(replica_holder(0, 1, 1), 0);
  EXPECT_EQ(replicated_rank(0, 1, 1), 0);
}

TEST(Rollback, GoesBackToTheLatestStepOfWhichAllStatesAreThere) {
  std::vector<KeptStates> ranks{whole(10, 20), whole(10, 20), {}};
  Rollback plan = decide_rollback(ranks, 3);
  EXPECT_FALSE(plan.anew);
  EXPECT_EQ(plan.step, 20);
  EXPECT_EQ(plan.newcomers, std::vector<int>{2});
  ranks[0].copy = {10, -1};  // holds rank 2's copy: that of step 20 had not arrived
  EXPECT_EQ(replica_holder(2, 3, 3), 0);
  plan = decide_rollback(ranks, 3);
  EXPECT_EQ(plan.step, 10);
  // One rank was further than the others when it happened.
  ranks = {whole(10, 20), whole(20, 30), whole(10, 20)};
  plan = decide_rollback(ranks, 3);
  EXPECT_EQ(plan.step, 20);
  EXPECT_TRUE(plan.newcomers.empty());
}

TEST(Rollback, ARunThatHasNotBegunBeginsAnew) {
  EXPECT_TRUE(decide_rollback(std::vector<KeptStates>(3), 3).anew);
  std::vector<KeptStates> ranks(3);
  ranks[0] = {.own = {0, -1}, .copy = {-1, -1}, .begun = false};
  EXPECT_TRUE(decide_rollback(ranks, 3).anew) << "no rank has taken a step yet";
}

TEST(Rollback, WhatIsLostIsNamed) {
  std::vector<KeptStates> ranks{whole(0, 10), {}, {}, whole(0, 10)};
  try {
    decide_rollback(ranks, 4);
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find("the state of rank 1 went with rank 2"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(decide_rollback(std::vector<KeptStates>{whole(0, 10), {}, whole(0, 10), {}}, 2),
               PeerLost)
      << "1 and 3 keep each other's";
  EXPECT_EQ(decide_rollback(std::vector<KeptStates>{whole(0, 10), {}, {}, whole(0, 10)}, 2).step,
            10)
      << "two hosts: theirs are with 3 and 0";
}

// Ranks that take steps, keep copies and die at any moment, as in rollback_recovery.cpp: the chosen
// step exists, is the same for all ranks, and is never more than two copies back.
TEST(Rollback, WhateverHappensWhatIsDecidedOnIsThere) {
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const auto any = [&](int least, int most) {
      return std::uniform_int_distribution<int>(least, most)(random);
    };
    const int size = any(2, 6), local = any(1, size);
    const int64_t latest = 10 * any(1, 5);
    std::vector<KeptStates> ranks(static_cast<size_t>(size), whole(latest - 10, latest));
    for (int r = 0; r < size; ++r) {
      KeptStates& kept = ranks[static_cast<size_t>(r)];
      if (any(0, 1) == 0) kept.copy[1] = -1;  // still being sent
      if (any(0, 3) > 0) continue;
      // It had not reached the step, and has sent nothing of it.
      kept = whole(-1, latest - 10);
      KeptStates& holder = ranks[static_cast<size_t>(replica_holder(r, size, local))];
      holder.copy = {latest - 10, -1};
    }
    const int dead = any(0, size - 1);
    ranks[static_cast<size_t>(dead)] = {};
    const Rollback plan = decide_rollback(ranks, local);
    ASSERT_FALSE(plan.anew) << "seed " << seed;
    ASSERT_TRUE(plan.step == latest || plan.step == latest - 10) << "seed " << seed;
    ASSERT_EQ(plan.newcomers, std::vector<int>{dead}) << "seed " << seed;
    for (int r = 0; r < size; ++r) {
      const KeptStates& holder =
          ranks[static_cast<size_t>(r == dead ? replica_holder(r, size, local) : r)];
      const auto& steps = r == dead ? holder.copy : holder.own;
      ASSERT_TRUE(steps[0] == plan.step || steps[1] == plan.step) << "seed " << seed;
    }
  }
}

}  // namespace lockstep::inline v0::recover::rollback_test
