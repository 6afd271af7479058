#include "lockstep/launch/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep::inline v0::launch {
namespace verdict_test {

using testing::ElementsAre;
using testing::IsEmpty;

RankSight runs(int rank) {
  return {.rank = rank};
}
RankSight stands_still(int rank) {
  return {.rank = rank, .stopped_by = "SIGSTOP"};
}
RankSight ended(int rank, bool badly) {
  return {.rank = rank, .end = "exited", .ended_badly = badly};
}
RankSight waited(int rank, int late) {
  return {.rank = rank,
          .end = "exited with code 1",
          .ended_badly = true,
          .gave_up = true,
          .late = late};
}

WorkerFailure judged(const RankSight& first, std::vector<RankSight> sights) {
  WorkerFailure failure;
  failure.rank = first.rank;
  failure.gave_up = first.gave_up;
  failure.late = first.late;
  sights.push_back(first);
  judge(failure, sights);
  return failure;
}

std::vector<int> causes(const WorkerFailure& failure) {
  std::vector<int> ranks;
  for (const RankSight& sight : failure.causes) ranks.push_back(sight.rank);
  return ranks;
}

TEST(Verdict, WhoStandsStillIsTheCauseWhoeverWasNamed) {
  const WorkerFailure failure =
      judged(waited(0, 2), {stands_still(3), stands_still(1), waited(2, 0), runs(4)});
  EXPECT_THAT(causes(failure), ElementsAre(1, 3));
  EXPECT_THAT(failure.waited, ElementsAre(0, 2));
}

TEST(Verdict, WhoEndedByItselfIsTheCauseOfThoseThatLostIt) {
  EXPECT_THAT(causes(judged(waited(0, 2), {ended(1, true), waited(2, 1)})), ElementsAre(1));
  EXPECT_THAT(causes(judged(waited(0, 1), {ended(1, false), waited(2, 1)})), ElementsAre(1));
}

TEST(Verdict, WhoWasWaitedForAndEndedComesBeforeOthersThatEnded) {
  EXPECT_THAT(causes(judged(waited(0, 2), {ended(1, true), ended(2, false)})), ElementsAre(2));
  EXPECT_THAT(causes(judged(waited(0, 2), {ended(1, true), runs(2)})), ElementsAre(1));
}

TEST(Verdict, AnEndThatTheAgentMayHaveBroughtAboutSaysNothing) {
  EXPECT_TRUE(ended_by_itself({.exit_code = 1}, false, false));
  EXPECT_FALSE(ended_by_itself({.exit_code = 1}, false, true)) << "in answer to SIGTERM, perhaps";
  EXPECT_TRUE(ended_by_itself({.signal = SIGSEGV}, true, true));
  EXPECT_FALSE(ended_by_itself({.signal = SIGTERM}, false, false));
  EXPECT_TRUE(ended_by_itself({.signal = SIGKILL}, false, false)) << "for lack of memory, say";
  EXPECT_FALSE(ended_by_itself({.signal = SIGKILL}, true, false));
}

TEST(Verdict, TheChainOfWaitingIsFollowed) {
  EXPECT_THAT(causes(judged(waited(0, 2), {runs(1), waited(2, 1)})), ElementsAre(1));
  EXPECT_THAT(causes(judged(waited(0, 2), {runs(1), waited(2, -1)})), IsEmpty());
  EXPECT_THAT(causes(judged(waited(0, 1), {waited(1, 0)})), IsEmpty()) << "each for the other";
  EXPECT_THAT(causes(judged(waited(0, 7), {runs(1)})), IsEmpty()) << "nobody saw it";
}

TEST(Verdict, AFailureThatWaitedForNobodyIsTheCauseItself) {
  const WorkerFailure failure = judged(ended(0, true), {ended(1, true), waited(2, 0)});
  EXPECT_THAT(failure.causes, IsEmpty());
  EXPECT_THAT(failure.waited, IsEmpty());
  EXPECT_THAT(causes(judged(ended(0, true), {stands_still(1)})), ElementsAre(1)) << "told besides";
}

}  // namespace verdict_test
}  // namespace lockstep::inline v0::launch
