#include "lockstep/timeline/overlap.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0::timeline::overlap_test {

ReadEvent event(int rank, const char* category, const char* name, int64_t begin, int64_t end) {
  return {.rank = rank, .name = name, .category = category, .begin_ns = begin, .end_ns = end};
}

// A step of 100: backward is 20 to 80, and waits from 70 on. Two buckets are under way from 30 to
// 60 and from 50 to 80.
std::vector<ReadEvent> a_step(int rank) {
  return {event(rank, kMarked, "step", 0, 100),
          event(rank, kMarked, "forward", 0, 20),
          event(rank, kMarked, "backward", 20, 80),
          event(rank, kMarked, "optimizer", 80, 100),
          event(rank, kCollective, "all_reduce: bucket 0", 30, 60),
          event(rank, kCollective, "all_reduce: bucket 1", 50, 80),
          event(rank, kWait, "all_reduce: bucket 1", 70, 80)};
}

TEST(Overlap, PartsAddUpToTheCommunication) {
  const auto ranks = overlap_of(a_step(2));
  ASSERT_EQ(ranks.size(), 1U);
  const RankOverlap& rank = ranks[0];
  EXPECT_EQ(rank.rank, 2);
  EXPECT_EQ(rank.steps, 1);
  EXPECT_EQ(rank.time, 100);
  EXPECT_EQ(rank.collectives, 2);
  EXPECT_EQ(rank.communication, 50) << "a moment with two calls counts once";
  EXPECT_EQ(rank.hidden, 40);
  EXPECT_EQ(rank.waited, 10);
  EXPECT_EQ(rank.waited_in_backward, 10);
  EXPECT_EQ(rank.beside, 0);
}

TEST(Overlap, WhatEndsInTheOptimizerIsBesideOrWaited) {
  std::vector<ReadEvent> events = a_step(0);
  // A gather that begins with the optimizer, for which it waits at its end.
  events.push_back(event(0, kCollective, "all_gather", 80, 95));
  events.push_back(event(0, kWait, "all_gather", 90, 95));
  const RankOverlap rank = overlap_of(events).at(0);
  EXPECT_EQ(rank.communication, 65);
  EXPECT_EQ(rank.hidden, 40);
  EXPECT_EQ(rank.beside, 10);
  EXPECT_EQ(rank.waited, 15);
  EXPECT_EQ(rank.waited_in_backward, 10);
}

TEST(Overlap, OnlyStepsCountWhereTheyAreMarked) {
  std::vector<ReadEvent> events = a_step(0);
  events.push_back(event(0, kCollective, "all_reduce: of a log", 110, 200));
  events.push_back(event(0, kWait, "all_reduce: of a log", 110, 200));
  EXPECT_EQ(overlap_of(events).at(0).communication, 50);
  EXPECT_EQ(overlap_of(events).at(0).collectives, 2);
  std::erase_if(events, [](const ReadEvent& e) { return e.name == "step"; });
  const RankOverlap whole = overlap_of(events).at(0);
  EXPECT_EQ(whole.steps, 0);
  EXPECT_EQ(whole.time, 200);
  EXPECT_EQ(whole.communication, 140);
  EXPECT_EQ(whole.waited, 100);
}

TEST(Overlap, RanksAreApart) {
  std::vector<ReadEvent> events = a_step(1);
  const std::vector<ReadEvent> more = a_step(0);
  events.insert(events.end(), more.begin(), more.end());
  events.push_back(event(3, kMarked, "forward", 0, 5));
  const auto ranks = overlap_of(events);
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[0].rank, 0);
  EXPECT_EQ(ranks[1].hidden, 40);
  EXPECT_EQ(ranks[2].rank, 3);
  EXPECT_EQ(ranks[2].communication, 0);
}

TEST(Overlap, OfADeviceItsOwnSpansCount) {
  std::vector<ReadEvent> events{
      event(0, kMarked, "step", 0, 20), event(0, kMarked, "backward", 5, 15),
      event(0, kOnDevice, "step", 10, 100), event(0, kOnDevice, "backward", 40, 80),
      event(0, kCollective, "all_reduce", 50, 90)};
  const RankOverlap rank = overlap_of(events).at(0);
  EXPECT_EQ(rank.time, 90);
  EXPECT_EQ(rank.communication, 40);
  EXPECT_EQ(rank.hidden, 30);
  EXPECT_EQ(rank.beside, 10);
}

TEST(Overlap, OneCallMayDoBothAndOperatorsAreNeither) {
  std::vector<ReadEvent> events{
      event(0, kMarked, "step", 0, 100), event(0, kMarked, "forward and backward", 0, 30),
      event(0, kOperator, "backward", 0, 100), event(0, kCollective, "all_reduce", 0, 50)};
  EXPECT_EQ(overlap_of(events).at(0).hidden, 30);
  EXPECT_EQ(overlap_of(events).at(0).beside, 20);
}

}  // namespace lockstep::inline v0::timeline::overlap_test
