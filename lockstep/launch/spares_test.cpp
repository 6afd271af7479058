// The decisions about spares: when they are started and given up, what an order contains, and which
// variables belong to a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "lockstep/core/errors.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/spare_order.h"
#include "lockstep/launch/spare_schedule.h"
#include "lockstep/launch/supervisor_test_support.h"

namespace lockstep::inline v0::launch {
namespace spares_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Time = SpareSchedule::Time;

constexpr int kMany = 99;

Time at(milliseconds after_start) {
  return kStart + after_start;
}

TEST(SpareSchedule, OneFollowsTheOtherAMomentAfterTheRanks) {
  SpareSchedule schedule(2, kStart);
  EXPECT_EQ(schedule.next_time(kMany), at(seconds(1)));
  EXPECT_FALSE(schedule.take_start(at(milliseconds(999)), kMany));
  EXPECT_TRUE(schedule.take_start(at(seconds(1)), kMany));
  EXPECT_FALSE(schedule.take_start(at(seconds(1)), kMany)) << "they do not compete with each other";
  EXPECT_TRUE(schedule.take_start(at(seconds(2)), kMany));
  EXPECT_EQ(schedule.next_time(kMany), std::nullopt) << "all are there";
}

TEST(SpareSchedule, AStartedRankPutsTheNextOneOff) {
  SpareSchedule schedule(1, kStart);
  schedule.on_rank_started(at(milliseconds(900)));
  EXPECT_EQ(schedule.next_time(kMany), at(milliseconds(1900)));
}

TEST(SpareSchedule, OneThatBecameARankIsFollowedByAnother) {
  SpareSchedule schedule(1, kStart);
  ASSERT_TRUE(schedule.take_start(at(seconds(1)), kMany));
  schedule.on_taken(at(seconds(10)));
  EXPECT_EQ(schedule.next_time(kMany), at(seconds(11)));
}

TEST(SpareSchedule, NoMoreThanRanksThatMayComeToBeReplaced) {
  SpareSchedule schedule(2, kStart);
  EXPECT_FALSE(schedule.take_start(at(seconds(1)), 0));
  EXPECT_EQ(schedule.next_time(0), std::nullopt);
  EXPECT_TRUE(schedule.take_start(at(seconds(1)), 1));
  EXPECT_FALSE(schedule.take_start(at(seconds(9)), 1));
}

TEST(SpareSchedule, ThreeLossesInARowAreTheEnd) {
  SpareSchedule schedule(1, kStart);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(schedule.take_start(*schedule.next_time(kMany), kMany)) << i;
    EXPECT_FALSE(schedule.given_up());
    schedule.on_lost(at(seconds(20 * (i + 1))), std::nullopt);
  }
  EXPECT_TRUE(schedule.given_up());
  EXPECT_EQ(schedule.next_time(kMany), std::nullopt);
  EXPECT_FALSE(schedule.take_start(at(seconds(1000)), kMany));
}

TEST(SpareSchedule, OneThatServedOrWaitedLongEndsTheRow) {
  SpareSchedule schedule(1, kStart);
  const auto lose_two = [&](milliseconds now) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(schedule.take_start(at(now + seconds(10) * i), kMany));
      schedule.on_lost(at(now + seconds(10) * i + seconds(1)), at(now + seconds(10) * i));
    }
  };
  lose_two(seconds(10));
  ASSERT_TRUE(schedule.take_start(at(seconds(100)), kMany));
  schedule.on_taken(at(seconds(101)));
  lose_two(seconds(200));
  ASSERT_TRUE(schedule.take_start(at(seconds(300)), kMany));
  schedule.on_lost(at(seconds(361)), at(seconds(301)));
  EXPECT_FALSE(schedule.given_up()) << "it had waited for a minute";
}

TEST(SpareOrder, ComesBackAsItWas) {
  const SpareOrder order{.variables = {{"RANK", "1"}, {"LOCKSTEP_TTY", ""}, {"ODD", "a=b\n\xff"}},
                         .cpus = {0, 2, 17}};
  EXPECT_EQ(decode_spare_order(encode(order)), order);
  EXPECT_EQ(decode_spare_order(encode(SpareOrder{})), SpareOrder{});
}

TEST(SpareOrder, AnythingElseIsRefused) {
  using namespace std::string_literals;  // NOLINT: of zero bytes
  for (const std::string& message : {""s, "0,1"s, "x\0"s, "1,\0RANK\0"s, "\0=1\0"s, "\0RANK=1"s})
    EXPECT_THROW(decode_spare_order(message), InvalidArgument) << message;
}

// A spare must be told the variables in which two ranks of a host differ.
TEST(RankEnvironment, ASpareIsToldAllThatRanksDifferIn) {
  const EnvLookup nothing = [](std::string_view) { return std::nullopt; };
  AttemptPlan plan;
  plan.node.world_size = plan.node.local_ranks = 3;
  plan.roles = {{.name = "ps", .ranks = 1, .service = true}, {.name = "trainer", .ranks = 2}};
  plan.replaces = true;
  plan.terminal_columns = 80;
  const Variables first = rank_variables(plan, 0, "/errors/0", nothing);
  plan.restart_count = 2;
  const Variables last = rank_variables(plan, 2, "/errors/2", nothing);
  Variables before = variables_of_all(first);
  EXPECT_EQ(before.at("RANK"), "");
  EXPECT_EQ(before.at("LOCKSTEP_STORE"), first.at("LOCKSTEP_STORE"));
  for (const auto& [name, value] : variables_of_one(last)) before[name] = value;
  std::erase_if(before, [](const auto& variable) { return variable.second.empty(); });
  Variables expected = last;
  std::erase_if(expected, [](const auto& variable) { return variable.second.empty(); });
  EXPECT_EQ(before, expected);
}

TEST(FailureReport, NamesASpareThatEnds) {
  EXPECT_EQ(spare_lost_line({.status = {.exit_code = 3}, .pid = 42, .last_line = "no such file"}),
            "[lockstep] a spare exited with code 3, pid 42, and had not come to init(); its last "
            "line: no such file; "
            "another one is started\n");
  EXPECT_EQ(spare_lost_line({.status = {.signal = 9}, .pid = 42, .waited = true, .is_last = true}),
            "[lockstep] a spare killed by SIGKILL (by the kernel for lack of memory, unless "
            "a user sent it), pid 42, "
            "before a rank needed it; no more spares are kept after so many in a row: a rank that "
            "dies is started anew\n");
}

TEST(SpareRanks, AreRefusedWhereNoneCanBe) {
  LaunchOptions options;
  options.command = {"./train"};
  const auto error = [&] {
    try {
      check_spare_ranks(options);
    } catch (const InvalidArgument& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  EXPECT_EQ(error(), "");
  options.spare_ranks = 1;
  EXPECT_THAT(error(), HasSubstr("--spare-ranks=1 needs --on-failure=replace"));
  options.on_failure = OnFailure::kReplace;
  EXPECT_EQ(error(), "");
  options.spare_ranks = -1;
  EXPECT_THAT(error(), HasSubstr("--spare-ranks=-1: expected a number of spares from 0"));
  options.spare_ranks = 2;
  options.substitute_local_rank = true;
  options.command = {"./train", "--gpu=${local_rank}"};
  EXPECT_THAT(error(), HasSubstr("--spare-ranks=2 does not go with ${local_rank}"));
}

}  // namespace spares_test
}  // namespace lockstep::inline v0::launch
