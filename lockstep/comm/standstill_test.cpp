#include "lockstep/comm/standstill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::standstill_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Standing standing(const std::string& group, uint64_t number, std::vector<int> awaited,
                  std::map<std::string, uint64_t> called) {
  Standing result;
  result.group = group;
  result.number = number;
  result.awaited = std::move(awaited);
  result.called = std::move(called);
  result.text = "#" + std::to_string(number) + " of " + group;
  return result;
}

TEST(FindCircle, TwoRanksInDifferentGroups) {
  const std::map<int, Standing> standings{{0, standing("a", 3, {1}, {{"a", 3}, {"b", 7}})},
                                          {1, standing("b", 8, {0}, {{"a", 2}, {"b", 8}})}};
  EXPECT_THAT(find_circle(0, standings), ElementsAre(0, 1));
  EXPECT_THAT(find_circle(1, standings), ElementsAre(1, 0));
}

TEST(FindCircle, OneThatHasCalledBothIsMovedByItsWait) {
  const std::map<int, Standing> standings{{0, standing("a", 3, {1}, {{"a", 3}, {"b", 8}})},
                                          {1, standing("b", 8, {0}, {{"a", 3}, {"b", 8}})}};
  EXPECT_THAT(find_circle(0, standings), IsEmpty());
}

TEST(FindCircle, ACallThatMovesSlowlyIsNone) {
  // A cut cable: all are in one call, and wait for each other.
  const std::map<int, Standing> standings{{0, standing("a", 3, {1}, {{"a", 3}})},
                                          {1, standing("a", 3, {2}, {{"a", 3}})},
                                          {2, standing("a", 3, {0}, {{"a", 3}})}};
  EXPECT_THAT(find_circle(0, standings), IsEmpty());
}

TEST(FindCircle, ThroughOneThatWaitsInTheSameCall) {
  const std::map<int, Standing> standings{{0, standing("a", 3, {1}, {{"a", 3}, {"b", 1}})},
                                          {1, standing("a", 3, {2}, {{"a", 3}})},
                                          {2, standing("b", 2, {0}, {{"a", 2}, {"b", 2}})}};
  EXPECT_THAT(find_circle(0, standings), ElementsAre(0, 1, 2));
  EXPECT_THAT(find_circle(2, standings), ElementsAre(2, 0, 1));
}

// Another thread of a rank may be about to call a group for the first time.
TEST(FindCircle, AFirstCallIsWaitedForLonger) {
  std::map<int, Standing> standings{{0, standing("a", 1, {1}, {{"a", 1}, {"b", 7}})},
                                    {1, standing("b", 8, {0}, {{"a", 0}, {"b", 8}})}};
  // Rank 1 may still call a; that rank 0 calls b is known to be impossible, but proves no circle.
  EXPECT_THAT(find_circle(0, standings), IsEmpty());
  for (auto& [rank, one] : standings) one.seconds = 31;
  EXPECT_THAT(find_circle(0, standings), ElementsAre(0, 1));
}

TEST(FindCircle, ALateRankIsNone) {
  const std::map<int, Standing> standings{{0, standing("a", 3, {1}, {{"a", 3}})},
                                          {2, standing("b", 1, {0}, {{"b", 1}})}};
  EXPECT_THAT(find_circle(0, standings), IsEmpty());
  EXPECT_THAT(find_circle(2, standings), IsEmpty());
  EXPECT_THAT(find_circle(5, standings), IsEmpty());
}

TEST(Standing, IsReadAsItWasWritten) {
  Standing whole = standing("a/1.0", 3, {1, 5}, {{"a/1.0", 3}, {"", 9}});
  whole.wait = 4;
  whole.looks = 6;
  whole.verdict = "wrong";
  whole.judged = {{0, 4}, {5, 1}};
  const auto read = parse_standing(encode(whole));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(whole));
  for (const char* text : {"", "{", "[]", "{\"wait\": -}", "{\"wait\": \"x\"}"})
    EXPECT_FALSE(parse_standing(text)) << text;
}

TEST(Standstill, IsJudgedOnceBothWereSeenTwice) {
  const auto store = std::make_shared<HashStore>();
  Standstill zero(store, 0), one(store, 1);
  const Standing in_a = standing("a", 3, {1}, {{"a", 3}, {"b", 7}});
  const Standing in_b = standing("b", 8, {0}, {{"a", 2}, {"b", 8}});
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
TEST(Standstill, WhoIsSilentIsNotJudged) {
  const auto store = std::make_shared<HashStore>();
  Standstill zero(store, 0), one(store, 1);
  EXPECT_EQ(one.look(standing("b", 8, {0}, {{"a", 2}, {"b", 8}}), true), "");
  for (int look = 0; look < 5; ++look)
    EXPECT_EQ(zero.look(standing("a", 3, {1}, {{"a", 3}, {"b", 7}}), false), "");
}

TEST(Standstill, DifferentOrdersAreNamedWithinSeconds) {
  testing::run_threads(3, call_in_different_orders, {.timeout = std::chrono::seconds(30)});
}

}  // namespace
}  // namespace lockstep::standstill_test
