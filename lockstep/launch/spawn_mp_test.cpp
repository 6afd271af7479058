// spawn() with real processes.

#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace spawn_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

TEST(Spawn, EachCallHasItsOwnRanks) {
  const Ended ended = run_words({"spawn", "twice"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("first call, rank 0 of 2", "first call, rank 1 of 2",
                                   "second call, rank 0 of 3", "second call, rank 1 of 3",
                                   "second call, rank 2 of 3"));
}

// They do not run what stands before and after the call.
TEST(Spawn, RanksMayBeForks) {
  const Ended ended = run_words({"spawn", "fork"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("rank 0 is a fork", "rank 1 is a fork", "the parent goes on"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1: error: rank 1 is unhappy"));
}

TEST(Spawn, AnExceptionOfARankIsReported) {
  const Ended ended = run_words({"spawn", "throw"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 2: error: rank 2 is unhappy"),
                               HasSubstr("rank 2 of 3 failed first")));
}

TEST(Spawn, ExitCodeTwoPassesThrough) {
  EXPECT_EQ(run_words({"spawn", "exit2"}).code, 2);
}

TEST(Spawn, RanksCannotSpawnRanks) {
  const Ended ended = run_words({"spawn", "nested"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("ranks cannot spawn ranks"));
}

}  // namespace spawn_mp_test
}  // namespace lockstep::inline v0::launch
