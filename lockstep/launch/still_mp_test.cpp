// Ranks that stand still, with real processes: which ones are replaced, and which are left behind.
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace still_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

// A single restart is enough, because only the stopped rank is restarted.
TEST(StillRanks, TheOneForWhomTheOthersWaitIsReplacedAndNotTheOthers) {
  const Ended ended = run({"nproc", "3", "restarts", "1", "on-failure", "replace"},
                          {program(), "outwait", "patient"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("rank 0 life 0", "rank 1 life 1", "rank 2 life 0"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1 stands still (SIGSTOP), pid "),
                               HasSubstr(", and others gave up waiting for it: it is killed\n"),
                               HasSubstr("it is started again, 1 of 1"), Not(HasSubstr("rank 0")),
                               Not(HasSubstr("rank 2"))));
}

// A rank may give up sooner than the agent looks for ranks that stand still.
TEST(StillRanks, WhoLostPatienceBeforeIsReplacedTooAndNotCounted) {
  const Ended ended = run({"nproc", "3", "restarts", "1", "on-failure", "replace"},
                          {program(), "outwait", "impatient"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("rank 0 life 1", "rank 1 life 1", "rank 2 life 1"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("it is started again, uncounted, since it only waited"),
                               Not(HasSubstr("since the job ends"))));
}

TEST(StillRanks, WhoTheOthersHaveEndedWithoutIsEndedWhereTheJobShrinks) {
  // The rank dies of SIGTERM, or ignores it.
  for (const std::string start : {"", "trap '' TERM; "}) {
    const Ended ended =
        run_shell({"nproc", "3", "grace", "300", "on-failure", "shrink"},
                  start +
                      "if [ $RANK = 1 ]; then kill -STOP $$; while :; do sleep 60; done; fi; "
                      "echo rank $RANK");
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("rank 0", "rank 2"));
    EXPECT_THAT(ended.err,
                AllOf(HasSubstr("[lockstep] rank 1 stands still (SIGSTOP), pid "),
                      HasSubstr(", and the others have ended without it: it is ended\n")));
    EXPECT_EQ(lines_of(ended.err).size(), 1u) << ended.err;
  }
}

// The report also names the rank that stands still.
TEST(StillRanks, WhereAllOthersHaveFailedItIsEndedToo) {
  const Ended ended = run_shell({"nproc", "3", "grace", "300", "on-failure", "shrink"},
                                "if [ $RANK = 1 ]; then kill -STOP $$; fi; exit 3");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("[lockstep] rank 1 stands still (SIGSTOP), pid "),
                    HasSubstr(", and the others have ended without it: it is ended\n"),
                    HasSubstr("rank 0 of 3 failed first"), HasSubstr("exited with code 3"),
                    HasSubstr("rank 1 is stopped (SIGSTOP)")));
}

// The agent looks at it long after the other rank has failed, and it still has work to do.
TEST(StillRanks, TheLastOneIsNotEndedSinceItIsStoppedForAWhile) {
  const Ended ended = run_shell({"nproc", "2", "grace", "300", "on-failure", "shrink"},
                                "if [ $RANK = 0 ]; then exit 3; fi; sleep 5; "
                                "(sleep 2; kill -CONT $$) & kill -STOP $$; echo rank $RANK; wait");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("rank 1"));
  EXPECT_THAT(ended.err, Not(HasSubstr("stands still")));
}

}  // namespace still_mp_test
}  // namespace lockstep::inline v0::launch
