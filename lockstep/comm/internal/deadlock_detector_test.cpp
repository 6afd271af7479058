#include "lockstep/comm/internal/deadlock_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::deadlock_detector_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WaitState state(const std::string& group, uint64_t number, std::vector<int> awaited,
                std::map<std::string, uint64_t> called) {
  WaitState result;
  result.group = group;
  result.number = number;
  result.awaited = std::move(awaited);
  result.called = std::move(called);
  result.text = "#" + std::to_string(number) + " of " + group;
  return result;
}

TEST(FindCircle, TwoRanksInDifferentGroups) {
  const std::map<int, WaitState> states{{0, state("a", 3, {1}, {{"a", 3}, {"b", 7}})},
                                        {1, state("b", 8, {0}, {{"a", 2}, {"b", 8}})}};
  EXPECT_THAT(find_cycle(0, states), ElementsAre(0, 1));
  EXPECT_THAT(find_cycle(1, states), ElementsAre(1, 0));
}

TEST(FindCircle, OneThatHasCalledBothIsMovedByItsWait) {
  const std::map<int, WaitState> states{{0, state("a", 3, {1}, {{"a", 3}, {"b", 8}})},
                                        {1, state("b", 8, {0}, {{"a", 3}, {"b", 8}})}};
  EXPECT_THAT(find_cycle(0, states), IsEmpty());
}

TEST(FindCircle, ACallThatMovesSlowlyIsNone) {
  // A cut cable: all are in one call, and wait for each other.
  const std::map<int, WaitState> states{{0, state("a", 3, {1}, {{"a", 3}})},
                                        {1, state("a", 3, {2}, {{"a", 3}})},
                                        {2, state("a", 3, {0}, {{"a", 3}})}};
  EXPECT_THAT(find_cycle(0, states), IsEmpty());
}

TEST(FindCircle, ThroughOneThatWaitsInTheSameCall) {
  const std::map<int, WaitState> states{{0, state("a", 3, {1}, {{"a", 3}, {"b", 1}})},
                                        {1, state("a", 3, {2}, {{"a", 3}})},
                                        {2, state("b", 2, {0}, {{"a", 2}, {"b", 2}})}};
  EXPECT_THAT(find_cycle(0, states), ElementsAre(0, 1, 2));
  EXPECT_THAT(find_cycle(2, states), ElementsAre(2, 0, 1));
}

// Another thread of a rank may be about to call a group for the first time.
TEST(FindCircle, AFirstCallIsWaitedForLonger) {
  std::map<int, WaitState> states{{0, state("a", 1, {1}, {{"a", 1}, {"b", 7}})},
                                  {1, state("b", 8, {0}, {{"a", 0}, {"b", 8}})}};
  // Rank 1 may still call a; that rank 0 calls b is known to be impossible, but proves no circle.
  EXPECT_THAT(find_cycle(0, states), IsEmpty());
  for (auto& [rank, one] : states) one.seconds = 31;
  EXPECT_THAT(find_cycle(0, states), ElementsAre(0, 1));
}

TEST(FindCircle, ALateRankIsNone) {
  const std::map<int, WaitState> states{{0, state("a", 3, {1}, {{"a", 3}})},
                                        {2, state("b", 1, {0}, {{"b", 1}})}};
  EXPECT_THAT(find_cycle(0, states), IsEmpty());
  EXPECT_THAT(find_cycle(2, states), IsEmpty());
  EXPECT_THAT(find_cycle(5, states), IsEmpty());
}

TEST(WaitState, IsReadAsItWasWritten) {
  WaitState whole = state("a/1.0", 3, {1, 5}, {{"a/1.0", 3}, {"", 9}});
  whole.wait = 4;
  whole.looks = 6;
  whole.verdict = "wrong";
  whole.judged = {{0, 4}, {5, 1}};
  const auto read = parse_wait_state(encode(whole));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(whole));
  for (const char* text : {"", "{", "[]", "{\"wait\": -}", "{\"wait\": \"x\"}"})
    EXPECT_FALSE(parse_wait_state(text)) << text;
}

TEST(DeadlockDetector, IsJudgedOnceBothWereSeenTwice) {
  const auto store = std::make_shared<HashStore>();
  DeadlockDetector zero(store, 0), one(store, 1);
  const WaitState in_a = state("a", 3, {1}, {{"a", 3}, {"b", 7}});
  const WaitState in_b = state("b", 8, {0}, {{"a", 2}, {"b", 8}});
  EXPECT_EQ(zero.look(in_a, true), "");
  EXPECT_EQ(one.look(in_b, true), "");
  EXPECT_EQ(zero.look(in_a, false), "");  // the first time that it sees the other
  EXPECT_EQ(one.look(in_b, true), "");    // something moved
  EXPECT_EQ(zero.look(in_a, false), "");
  std::string heard;
  std::thread other([&] {
    while (heard.empty()) heard = zero.look(in_a, false);
  });
  std::string found;
  while (found.empty()) found = one.look(in_b, false);
  other.join();
  EXPECT_EQ(found,
            "ranks wait for each other in different groups: rank 0 is in #3 of a; rank 1 is "
            "in #8 of b; every rank must call the operations of its groups in the same order");
  EXPECT_EQ(heard, found);
}

// One of the ranks that do not move is only late: it does not report a wait.
TEST(DeadlockDetector, WhoIsSilentIsNotJudged) {
  const auto store = std::make_shared<HashStore>();
  DeadlockDetector zero(store, 0), one(store, 1);
  EXPECT_EQ(one.look(state("b", 8, {0}, {{"a", 2}, {"b", 8}}), true), "");
  for (int look = 0; look < 5; ++look)
    EXPECT_EQ(zero.look(state("a", 3, {1}, {{"a", 3}, {"b", 7}}), false), "");
}

TEST(DeadlockDetector, DifferentOrdersAreNamedWithinSeconds) {
  testing::run_threads(3, call_in_different_orders, {.timeout = std::chrono::seconds(30)});
}

}  // namespace
}  // namespace lockstep::inline v0::deadlock_detector_test
