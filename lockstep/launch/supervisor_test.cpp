#include "lockstep/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/launch/supervisor_test_support.h"

namespace lockstep::inline v0::launch {
namespace supervisor_test {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr milliseconds kGrace(100);

std::vector<SignalOrder> exits(Supervisor& supervisor, std::vector<RankExit> list,
                               milliseconds at = {}) {
  return supervisor.on_exits(list, kStart + at);
}

TEST(FirstFailure, WhoOnlyWaitedIsBlamedLast) {
  const RankExit waited{0, {1, 0}, true}, aborted{1, {0, SIGABRT}, true};
  EXPECT_EQ(choose_first_failure(std::vector{waited, aborted, exited(2, 7)}).local_rank, 2);
  EXPECT_EQ(choose_first_failure(std::vector{waited, aborted, exited(2, 0)}).local_rank, 0);
}

TEST(Supervisor, GoodEndsNeedNothing) {
  Supervisor supervisor(2, kGrace);
  EXPECT_THAT(exits(supervisor, {exited(0, 0)}), IsEmpty());
  EXPECT_FALSE(supervisor.done());
  EXPECT_TRUE(supervisor.running(1));
  EXPECT_THAT(exits(supervisor, {exited(1, 0)}), IsEmpty());
  EXPECT_TRUE(supervisor.done());
  EXPECT_FALSE(supervisor.failure());
}

TEST(Supervisor, AFailureStopsTheOthersAndKillsThemAfterTheGrace) {
  Supervisor supervisor(3, kGrace);
  EXPECT_THAT(exits(supervisor, {exited(1, 4)}), ElementsAre(group(0, SIGTERM), group(2, SIGTERM)));
  EXPECT_EQ(supervisor.next_time(), kStart + kGrace);
  EXPECT_THAT(exits(supervisor, {killed(0, SIGTERM)}, milliseconds(50)), IsEmpty());
  EXPECT_THAT(supervisor.on_time(kStart + milliseconds(99)), IsEmpty());
  EXPECT_THAT(supervisor.on_time(kStart + kGrace), ElementsAre(group(2, SIGKILL)));
  EXPECT_FALSE(supervisor.next_time());
  exits(supervisor, {killed(2, SIGKILL)}, milliseconds(101));
  EXPECT_TRUE(supervisor.done());
  EXPECT_EQ(supervisor.failure()->local_rank, 1) << "the first one, not those that were stopped";
  EXPECT_FALSE(supervisor.stop_signal());
}

TEST(Supervisor, ASignalIsPassedOnThenEscalates) {
  Supervisor supervisor(2, kGrace);
  EXPECT_THAT(supervisor.on_signal(SIGINT, kStart),
              ElementsAre(group(0, SIGINT), group(1, SIGINT)));
  EXPECT_THAT(supervisor.on_time(kStart + kGrace),
              ElementsAre(group(0, SIGKILL), group(1, SIGKILL)));
  exits(supervisor, {killed(0, SIGKILL), killed(1, SIGKILL)});
  EXPECT_EQ(supervisor.stop_signal(), SIGINT);
  EXPECT_FALSE(supervisor.failure()) << "ranks that were told to stop did not fail";
}

TEST(Supervisor, SigtermAsksAndGivesTimeToSave) {
  const Grace grace(kGrace, milliseconds(300));
  Supervisor supervisor(2, grace);
  EXPECT_THAT(supervisor.on_signal(SIGTERM, kStart),
              ElementsAre(group(0, SIGTERM), group(1, SIGTERM)));
  EXPECT_EQ(supervisor.next_time(), kStart + milliseconds(300));
  exits(supervisor, {exited(0, 0)});
  EXPECT_FALSE(supervisor.all_ended_well()) << "one still runs";
  exits(supervisor, {exited(1, 0)});
  EXPECT_TRUE(supervisor.all_ended_well());
  EXPECT_EQ(supervisor.stop_signal(), SIGTERM);

  Supervisor asked(1, grace);
  EXPECT_THAT(asked.on_stop(kStart, true), ElementsAre(group(0, SIGTERM)));
  EXPECT_EQ(asked.next_time(), kStart + milliseconds(300));
  exits(asked, {killed(0, SIGTERM)});
  EXPECT_FALSE(asked.all_ended_well());

  Supervisor interrupted(1, grace);
  interrupted.on_signal(SIGINT, kStart);
  EXPECT_EQ(interrupted.next_time(), kStart + kGrace) << "somebody waits";
  Supervisor failed(2, grace);
  exits(failed, {exited(0, 3)});
  EXPECT_EQ(failed.next_time(), kStart + kGrace);
  exits(failed, {exited(1, 0)});
  EXPECT_FALSE(failed.all_ended_well());
}

TEST(Supervisor, UserSignalsArePassedOnAndStopNothing) {
  Supervisor supervisor(2, kGrace);
  EXPECT_THAT(supervisor.on_signal(SIGUSR1, kStart),
              ElementsAre(SignalOrder{0, SIGUSR1, false}, SignalOrder{1, SIGUSR1, false}));
  EXPECT_FALSE(supervisor.stopping());
  EXPECT_FALSE(supervisor.next_time());
  exits(supervisor, {exited(0, 0), exited(1, 0)});
  EXPECT_TRUE(supervisor.all_ended_well());
}

TEST(Supervisor, ASecondSignalKillsAtOnce) {
  Supervisor supervisor(1, kGrace);
  supervisor.on_signal(SIGINT, kStart);
  EXPECT_THAT(supervisor.on_signal(SIGINT, kStart + milliseconds(1)),
              ElementsAre(group(0, SIGKILL)));
  EXPECT_TRUE(supervisor.killing());
  EXPECT_THAT(supervisor.on_time(kStart + kGrace), IsEmpty());
}

TEST(Supervisor, ASignalAfterAFailureKillsButTheFailureCounts) {
  Supervisor supervisor(2, kGrace);
  exits(supervisor, {exited(0, 1)});
  EXPECT_THAT(supervisor.on_signal(SIGINT, kStart), ElementsAre(group(1, SIGKILL)));
  EXPECT_FALSE(supervisor.stop_signal());
}

TEST(Supervisor, AStopFromElsewhereIsLikeAFailureButNobodyHereIsBlamed) {
  Supervisor supervisor(2, std::chrono::seconds(1));
  const Supervisor::Time now{};
  EXPECT_EQ(supervisor.on_stop(now).size(), 2u);
  EXPECT_TRUE(supervisor.on_stop(now).empty());
  const RankExit exit{0, {3, 0}};
  EXPECT_TRUE(supervisor.on_exits(std::span(&exit, 1), now).empty());
  EXPECT_FALSE(supervisor.failure().has_value());
  const auto orders = supervisor.on_time(now + std::chrono::seconds(1));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0], (SignalOrder{1, SIGKILL, true}));
}

TEST(Supervisor, UserSignalsGoToTheRanksThemselvesAndChangeNothing) {
  Supervisor supervisor(2, kGrace);
  exits(supervisor, {exited(0, 0)});
  EXPECT_THAT(supervisor.on_signal(SIGUSR1, kStart), ElementsAre(SignalOrder{1, SIGUSR1, false}));
  EXPECT_FALSE(supervisor.stop_signal());
  EXPECT_FALSE(supervisor.next_time());
}

TEST(Supervisor, ALostReaderStopsTheRanksPolitely) {
  Supervisor supervisor(1, kGrace);
  EXPECT_THAT(supervisor.on_signal(SIGPIPE, kStart), ElementsAre(group(0, SIGTERM)));
  EXPECT_EQ(supervisor.stop_signal(), SIGPIPE);
}

TEST(FirstFailure, ASignalBeforeAnExitBeforeNothing) {
  const auto choose = [](std::vector<RankExit> list) {
    return choose_first_failure(list).local_rank;
  };
  EXPECT_EQ(choose({exited(0, 1), killed(2, SIGKILL)}), 2);
  EXPECT_EQ(choose({killed(0, SIGABRT), killed(1, SIGSEGV)}), 1)
      << "an abort is how an uncaught error ends";
  EXPECT_EQ(choose({exited(0, 1), killed(1, SIGABRT)}), 1);
  EXPECT_EQ(choose({exited(3, 1), exited(1, 2)}), 1);
  EXPECT_EQ(choose({exited(0, 0), exited(1, 5)}), 1);
}

class Replacing : public ::testing::Test {
 protected:
  std::vector<int> due(milliseconds at) { return supervisor_.take_restarts(kStart + at); }

  Supervisor supervisor_{std::vector<RankPolicy>(3), kGrace, true, 3};
};

TEST_F(Replacing, ARankThatDiesIsStartedAnewAtOnceAndTheOthersGoOn) {
  EXPECT_THAT(exits(supervisor_, {killed(1, SIGKILL)}), IsEmpty());
  EXPECT_TRUE(supervisor_.waits(1));
  EXPECT_EQ(supervisor_.next_time(), kStart);
  EXPECT_THAT(due({}), ElementsAre(1));
  EXPECT_EQ(supervisor_.restarts(1), 1);
  EXPECT_EQ(supervisor_.restarts(0), 0);
  EXPECT_EQ(supervisor_.replaced(), 1);
}

TEST_F(Replacing, ProcessesThatEndQuicklyHavePauses) {
  exits(supervisor_, {exited(1, 1)});
  due({});
  exits(supervisor_, {exited(1, 1)}, milliseconds(300));
  EXPECT_THAT(due(milliseconds(399)), IsEmpty());
  EXPECT_THAT(due(milliseconds(400)), ElementsAre(1));
  exits(supervisor_, {exited(1, 1)}, milliseconds(700));
  EXPECT_THAT(due(milliseconds(899)), IsEmpty()) << "the second in a row: 200 ms";
  EXPECT_THAT(due(milliseconds(900)), ElementsAre(1));
}

TEST_F(Replacing, OneThatLivedLongHasNoPause) {
  exits(supervisor_, {exited(1, 1)});
  due({});
  exits(supervisor_, {exited(1, 1)}, milliseconds(1000));
  EXPECT_THAT(due(milliseconds(1000)), ElementsAre(1));
}

TEST_F(Replacing, TheLimitIsOfAllRanksTogether) {
  exits(supervisor_, {killed(0, SIGKILL), killed(1, SIGKILL)});
  due({});
  exits(supervisor_, {killed(2, SIGKILL)}, milliseconds(2000));
  due(milliseconds(2000));
  EXPECT_EQ(supervisor_.replaced(), 3);
  EXPECT_THAT(exits(supervisor_, {killed(0, SIGKILL)}, milliseconds(4000)),
              ElementsAre(group(1, SIGTERM), group(2, SIGTERM)));
  EXPECT_EQ(supervisor_.failure()->local_rank, 0);
}

TEST_F(Replacing, NobodyIsReplacedOnceAnotherHasEndedWell) {
  exits(supervisor_, {exited(0, 0)});
  EXPECT_THAT(exits(supervisor_, {killed(1, SIGKILL)}), ElementsAre(group(2, SIGTERM)))
      << "a new rank 1 would wait for rank 0 in vain";
  EXPECT_EQ(supervisor_.replaced(), 0);
}

TEST_F(Replacing, AKillFromElsewhereEndsTheWaitForARestartAsWell) {
  exits(supervisor_, {exited(1, 1)});
  due({});
  exits(supervisor_, {exited(1, 1)}, milliseconds(10));
  EXPECT_TRUE(supervisor_.waits(1));
  EXPECT_THAT(supervisor_.on_signal(SIGKILL, kStart + milliseconds(20), /*relayed=*/true),
              ElementsAre(group(0, SIGKILL), group(2, SIGKILL)));
  EXPECT_FALSE(supervisor_.waits(1));
  EXPECT_THAT(due(milliseconds(5000)), IsEmpty());
}

TEST_F(Replacing, BadUsageIsFinal) {
  EXPECT_THAT(exits(supervisor_, {exited(1, 2)}),
              ElementsAre(group(0, SIGTERM), group(2, SIGTERM)));
  EXPECT_EQ(supervisor_.replaced(), 0);
}

class ShrinkingJob : public ::testing::Test {
 protected:
  Supervisor supervisor_{std::vector<RankPolicy>(3), kGrace, true, 0, true};
};

TEST_F(ShrinkingJob, TheOthersGoOnWithoutARankThatFails) {
  EXPECT_THAT(exits(supervisor_, {killed(1, SIGKILL)}), IsEmpty());
  EXPECT_FALSE(supervisor_.waits(1));
  EXPECT_EQ(supervisor_.left_behind(), 1);
  exits(supervisor_, {exited(0, 0)});
  EXPECT_FALSE(supervisor_.done());
  exits(supervisor_, {exited(2, 0)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_FALSE(supervisor_.failure());
  EXPECT_TRUE(supervisor_.all_ended_well());
}

TEST_F(ShrinkingJob, TheLastOneIsTheJob) {
  exits(supervisor_, {killed(0, SIGKILL), exited(2, 1)});
  EXPECT_EQ(supervisor_.left_behind(), 2);
  exits(supervisor_, {killed(1, SIGSEGV)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_EQ(supervisor_.failure()->local_rank, 1);
}

TEST_F(ShrinkingJob, AFailureAfterAnotherHasEndedWellIsTheJobs) {
  exits(supervisor_, {exited(0, 0)});
  EXPECT_THAT(exits(supervisor_, {killed(2, SIGKILL)}), ElementsAre(group(1, SIGTERM)))
      << "the last checkpoint may be what it did not write";
  EXPECT_EQ(supervisor_.failure()->local_rank, 2);
}

TEST_F(ShrinkingJob, WhoHasEndedWellInTheSameLookWentOnWithoutTheOneThatFailed) {
  EXPECT_THAT(exits(supervisor_, {exited(0, 0), killed(2, SIGKILL), exited(1, 0)}), IsEmpty());
  EXPECT_TRUE(supervisor_.done());
  EXPECT_TRUE(supervisor_.all_ended_well());
  EXPECT_EQ(supervisor_.left_behind(), 1);
}

TEST_F(ShrinkingJob, AFailureAfterTheLastStepIsTheJobs) {
  RankExit after = exited(2, 1);
  after.past_end = true;
  for (const bool in_the_same_look : {true, false}) {
    Supervisor supervisor = supervisor_;
    EXPECT_FALSE(
        exits(supervisor, in_the_same_look ? std::vector{exited(0, 0), after} : std::vector{after})
            .empty());
    EXPECT_EQ(supervisor.failure()->local_rank, 2);
  }
}

// The ranks that the others ended without, because they stand still.
TEST_F(ShrinkingJob, WhoIsLeftBehindIsEndedAndIsNoFailure) {
  EXPECT_FALSE(supervisor_.may_leave_behind());
  exits(supervisor_, {exited(0, 0), exited(2, 0)});
  EXPECT_TRUE(supervisor_.may_leave_behind());
  const int left[] = {1};
  EXPECT_THAT(supervisor_.leave_behind(left, kStart), ElementsAre(group(1, SIGTERM)));
  EXPECT_FALSE(supervisor_.may_leave_behind()) << "once";
  EXPECT_EQ(supervisor_.next_time(), kStart + kGrace);
  EXPECT_THAT(supervisor_.on_time(kStart + milliseconds(99)), IsEmpty());
  EXPECT_THAT(supervisor_.on_time(kStart + kGrace), ElementsAre(group(1, SIGKILL)));
  EXPECT_FALSE(supervisor_.next_time());
  EXPECT_THAT(exits(supervisor_, {killed(1, SIGKILL)}), IsEmpty());
  EXPECT_TRUE(supervisor_.done());
  EXPECT_TRUE(supervisor_.all_ended_well());
  EXPECT_FALSE(supervisor_.failure());
  EXPECT_EQ(supervisor_.left_behind(), 1);
}

// No rank has done the work that was to be done.
TEST_F(ShrinkingJob, WhereAllOthersFailedTheOneThatStandsStillIsEndedAndTheJobHasFailed) {
  exits(supervisor_, {exited(0, 1)});
  exits(supervisor_, {killed(2, SIGSEGV)});
  EXPECT_TRUE(supervisor_.may_leave_behind());
  const int left[] = {1};
  EXPECT_THAT(supervisor_.leave_behind(left, kStart), ElementsAre(group(1, SIGTERM)));
  ASSERT_TRUE(supervisor_.failure());
  EXPECT_EQ(supervisor_.failure()->local_rank, 2) << "who died of a signal, of those that failed";
  EXPECT_THAT(supervisor_.on_time(kStart + kGrace), ElementsAre(group(1, SIGKILL)));
  exits(supervisor_, {killed(1, SIGKILL)});
  EXPECT_TRUE(supervisor_.done());
  EXPECT_FALSE(supervisor_.all_ended_well());
}

// A rank that only gave up waiting for the one that is replaced.
TEST(ReplacedRanks, WhoIsExcusedIsReplacedWithoutBeingCounted) {
  Supervisor supervisor({{}, {}, {}}, kGrace, true, /*replacements=*/1);
  RankExit waited = exited(0, 1), stood_still = killed(1, SIGKILL);
  waited.gave_up = waited.excused = true;
  EXPECT_THAT(exits(supervisor, {waited}), IsEmpty());
  EXPECT_THAT(exits(supervisor, {stood_still}), IsEmpty());
  EXPECT_EQ(supervisor.replaced(), 1);
  waited.local_rank = 2;
  EXPECT_THAT(exits(supervisor, {waited}), IsEmpty()) << "although none is left";
  EXPECT_EQ(supervisor.replaced(), 1);
  EXPECT_FALSE(supervisor.failure());
  EXPECT_THAT(supervisor.take_restarts(kStart + std::chrono::hours(1)), SizeIs(3));
}

class Told : public ::testing::Test {
 protected:
  Supervisor supervisor_{3, kGrace};
};

TEST_F(Told, WhoeverTellsAllHostsKillsNobody) {
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart, true), SizeIs(3));
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart), IsEmpty()) << "this host's own";
  EXPECT_FALSE(supervisor_.killing());
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart, true), IsEmpty()) << "a third host's";
  EXPECT_FALSE(supervisor_.killing());
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart),
              ElementsAre(group(0, SIGKILL), group(1, SIGKILL), group(2, SIGKILL)))
      << "a second one here";
}

TEST_F(Told, ASecondSignalElsewhereIsRelayedAsAKill) {
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart), SizeIs(3));
  EXPECT_THAT(supervisor_.on_signal(SIGTERM, kStart, true), IsEmpty());
  EXPECT_THAT(supervisor_.on_signal(SIGKILL, kStart, true), SizeIs(3));
  EXPECT_TRUE(supervisor_.killing());
}

TEST_F(Told, SigintAfterSigtermKills) {
  supervisor_.on_signal(SIGTERM, kStart, true);
  EXPECT_THAT(supervisor_.on_signal(SIGINT, kStart), SizeIs(3));
  EXPECT_TRUE(supervisor_.killing());
}

TEST_F(ShrinkingJob, BadUsageIsFinal) {
  EXPECT_THAT(exits(supervisor_, {exited(1, 2)}),
              ElementsAre(group(0, SIGTERM), group(2, SIGTERM)));
}

}  // namespace supervisor_test
}  // namespace lockstep::inline v0::launch
