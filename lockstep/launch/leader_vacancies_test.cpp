// The Leader's decisions when hosts are lost whose places others may take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/follower.h"
#include "lockstep/launch/leader.h"
#include "lockstep/launch/leader_sends_test.h"

namespace lockstep::inline v0::launch {
namespace leader_vacancies_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = AgentMessage::Kind;

// Hosts 0, 1 and 2 of two ranks each run generation 0; all others are spares.
class PlaceOfALostHost : public testing::Test {
 protected:
  static LeaderOptions options() {
    LeaderOptions options;
    options.nodes = 3;
    options.spare_nodes = 2;
    options.run_id = "job";
    options.on_failure = OnFailure::kReplace;
    options.max_restarts = 5;
    options.join_timeout = seconds(60);
    return options;
  }
  void begin(const LeaderOptions& options) {
    leader_ = Leader(options, now_);
    for (const int member : {0, 1, 2}) join(member);
    for (const int member : {0, 1, 2}) say(member, Kind::kReady, 0);
    if (leader_.to_claim() == 0) leader_.on_claimed(0, true, 0, now_);
    beat({0, 1, 2});
  }
  Leader::Sends join(int member, int ranks = 2, int seen = -1, int ran_with = 0) {
    AgentMessage message;
    message.kind = Kind::kJoin;
    message.agent = "agent" + std::to_string(member);
    message.introduction = {-1, "host" + std::to_string(member), "", 1, ranks};
    message.nodes = 3;
    message.run_id = "job";
    message.port = static_cast<uint16_t>(5000 + member);
    message.seen = seen;
    message.ran_with = ran_with;
    return leader_.on_message(member, message, member == 0 ? "" : "10.0.0.9", now_);
  }
  static AgentMessage of(Kind kind, int generation) {
    AgentMessage message;
    message.kind = kind;
    message.generation = generation;
    return message;
  }
  Leader::Sends say(int member, Kind kind, int generation, bool past_end = false) {
    AgentMessage message = of(kind, generation);
    message.past_end = past_end;
    message.finished = message.well = kind == Kind::kEnded;
    return leader_.on_message(member, message, "", now_);
  }
  // Members of generation 0 give signs of life; returns what is sent then.
  Leader::Sends beat(const std::vector<int>& members) {
    Leader::Sends all;
    for (const int member : members)
      for (Leader::Send& send : say(member, Kind::kBeat, 0)) all.push_back(std::move(send));
    return all;
  }
  // A second goes by, in which all hosts of generation 0 that are left give signs of life.
  Leader::Sends a_second(const std::vector<int>& members) {
    now_ += seconds(1);
    Leader::Sends all = leader_.on_time(now_);
    for (Leader::Send& send : beat(members)) all.push_back(std::move(send));
    return all;
  }
  Leader::Sends ask_to_leave(int member) {
    AgentMessage message = of(Kind::kLeave, 0);
    message.text = "SIGTERM";
    return leader_.on_message(member, message, "", now_);
  }
  Leader::Sends lose(int member) { return leader_.on_lost(member, "closed", now_); }
  // Each once: what is not answered is said again with the next sign of life.
  static std::set<int> told(const Leader::Sends& sends, Kind kind) {
    const std::vector<int> members = leader_sends_test::told(sends, kind);
    return {members.begin(), members.end()};
  }
  static AgentMessage first(const Leader::Sends& sends, Kind kind) {
    for (const auto& [to, message] : sends)
      if (message.kind == kind) return message;
    ADD_FAILURE() << "nobody was told";
    return {};
  }
  std::string lines() {
    std::string all;
    for (const std::string& line : leader_.take_lines()) all += line;
    return all;
  }

  Leader::Time now_{};
  Leader leader_{options(), now_};
};

TEST_F(PlaceOfALostHost, IsTakenByASpareWhileTheOthersGoOn) {
  begin(options());
  EXPECT_THAT(first(join(3), Kind::kWait).text,
              "the job runs on 3 hosts; this one is a spare, and takes the place of one that is "
              "lost");
  EXPECT_EQ(lines(), "[lockstep] host3 is a spare\n");
  EXPECT_THAT(lose(2), IsEmpty()) << "the others may just have done their last step";
  const Leader::Sends offered = a_second({0, 1});
  EXPECT_THAT(told(offered, Kind::kPlan), ElementsAre(3));
  EXPECT_THAT(told(offered, Kind::kStop), IsEmpty());
  const NodePlan plan = first(offered, Kind::kPlan).plan;
  EXPECT_EQ(plan.first_rank, 4);
  EXPECT_EQ(plan.local_ranks, 2);
  EXPECT_EQ(plan.world_size, 6);
  EXPECT_EQ(plan.generation, 1);
  EXPECT_EQ(plan.joins, 0) << "it uses that generation's store";
  EXPECT_EQ(plan.moves, 1);
  EXPECT_EQ(plan.restarts, 0);
  EXPECT_EQ(plan.master.port, 5000) << "of rank 0's host, which is still there";
  const Leader::Sends started = say(3, Kind::kReady, 1);
  EXPECT_THAT(told(started, Kind::kStart), ElementsAre(3));
  EXPECT_EQ(first(started, Kind::kStart).generation, 1);
  EXPECT_EQ(lines(),
            "[lockstep] the agent on host2 (10.0.0.9, ranks 4 to 5) vanished: closed; ranks 4 to 5 "
            "are started on host3\n");
  EXPECT_THAT(say(2, Kind::kBeat, 0), IsEmpty()) << "it is not known any more";
  say(0, Kind::kEnded, 0);
  say(1, Kind::kEnded, 0);
  EXPECT_FALSE(leader_.over());
  EXPECT_EQ(first(say(3, Kind::kEnded, 1), Kind::kOver).exit_code, 0);
}

TEST_F(PlaceOfALostHost, IsTakenAgainAndAgain) {
  begin(options());
  join(3);
  join(4);
  lose(1);
  a_second({0, 2});
  say(3, Kind::kReady, 1);
  lose(3);
  const Leader::Sends offered = a_second({0, 2});
  const NodePlan plan = first(offered, Kind::kPlan).plan;
  EXPECT_EQ(plan.joins, 0);
  EXPECT_EQ(plan.generation, 2);
  EXPECT_EQ(plan.moves, 2);
  EXPECT_EQ(plan.first_rank, 2);
  EXPECT_THAT(told(say(4, Kind::kReady, 2), Kind::kStart), ElementsAre(4));
}

TEST_F(PlaceOfALostHost, WaitsForASpareThatIsLargeEnough) {
  begin(options());
  join(3, /*ranks=*/1);
  lines();
  lose(2);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kPlan), IsEmpty());
  EXPECT_EQ(lines(),
            "[lockstep] the agent on host2 (10.0.0.9, ranks 4 to 5) vanished: closed; its "
            "place is free for another host\n");
  a_second({0, 1});
  EXPECT_EQ(lines(), "") << "it is said once";
  const Leader::Sends offered = join(4, /*ranks=*/8);
  EXPECT_THAT(told(offered, Kind::kPlan), ElementsAre(4));
  EXPECT_EQ(first(offered, Kind::kPlan).plan.local_ranks, 2);
}

TEST_F(PlaceOfALostHost, IsNotWaitedForForEver) {
  begin(options());
  lose(2);
  Leader::Sends sends;
  for (int s = 0; s < 59; ++s) sends = a_second({0, 1});
  EXPECT_THAT(told(sends, Kind::kStop), IsEmpty());
  sends = a_second({0, 1});
  EXPECT_THAT(told(sends, Kind::kStop), ElementsAre(0, 1));
  say(0, Kind::kEnded, 0);
  const AgentMessage over = first(say(1, Kind::kEnded, 0), Kind::kOver);
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_EQ(over.text,
            "[lockstep] the agent on host2 (10.0.0.9, ranks 4 to 5) vanished: closed; no host took "
            "its place within 60 s (--rdzv-conf join_timeout=SECONDS waits longer)\n");
}

TEST_F(PlaceOfALostHost, IsNotFreeWhileItsRanksMayRun) {
  begin(options());
  join(3);
  const Leader::Time lost = now_ + seconds(8);
  while (now_ < lost + seconds(6)) {
    const Leader::Sends sends = a_second({0, 1});
    say(3, Kind::kBeat, -1);
    EXPECT_THAT(told(sends, Kind::kPlan), IsEmpty()) << "a heartbeat, the grace time and a second";
  }
  EXPECT_THAT(told(a_second({0, 1}), Kind::kPlan), ElementsAre(3));
}

TEST_F(PlaceOfALostHost, IsNotTakenAfterTheLastStep) {
  for (const bool spare : {true, false}) {
    LeaderOptions some = options();
    if (!spare) some.spare_nodes = 0;
    begin(some);
    if (spare) join(3);
    lose(2);
    now_ += seconds(1);
    say(0, Kind::kBeat, 0, /*past_end=*/true);
    EXPECT_THAT(told(say(1, Kind::kBeat, 0), Kind::kPlan), IsEmpty());
    EXPECT_THAT(lines(), HasSubstr("vanished: closed; all ranks had done their last step by then"));
    say(0, Kind::kEnded, 0);
    EXPECT_EQ(first(say(1, Kind::kEnded, 0), Kind::kOver).exit_code, 0);
  }
}

TEST_F(PlaceOfALostHost, EndsTheJobWhereNoSpareMayCome) {
  LeaderOptions none = options();
  none.spare_nodes = 0;
  begin(none);
  EXPECT_THAT(first(join(3), Kind::kRefused).text, HasSubstr("has begun, with all its hosts"));
  lose(2);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kStop), ElementsAre(0, 1));
  say(0, Kind::kEnded, 0);
  const AgentMessage over = first(say(1, Kind::kEnded, 0), Kind::kOver);
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_EQ(over.text, "[lockstep] the agent on host2 (10.0.0.9, ranks 4 to 5) vanished: closed\n");
}

TEST_F(PlaceOfALostHost, IsBlamedForAFailureThatFollows) {
  begin(options());
  lose(2);
  a_second({0, 1});
  AgentMessage failed = of(Kind::kFailed, 0);
  failed.failure.emplace().exit_code = 1;
  EXPECT_THAT(told(leader_.on_message(1, failed, "", now_), Kind::kStop), ElementsAre(0));
  say(0, Kind::kEnded, 0);
  EXPECT_THAT(first(say(1, Kind::kEnded, 0), Kind::kOver).text,
              HasSubstr("the agent on host2 (10.0.0.9, ranks 4 to 5) vanished"));
}

TEST_F(PlaceOfALostHost, GoesToTheNextSpareWhenOneIsLostBeforeItBegins) {
  begin(options());
  join(3);
  join(4);
  lose(2);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kPlan), ElementsAre(3));
  lose(3);
  const Leader::Sends offered = a_second({0, 1});
  EXPECT_THAT(told(offered, Kind::kPlan), ElementsAre(4));
  EXPECT_EQ(first(offered, Kind::kPlan).generation, 2) << "no number is used twice";
  EXPECT_EQ(first(offered, Kind::kPlan).plan.moves, 1) << "no ranks ran on the first spare";
}

TEST_F(PlaceOfALostHost, IsTakenUnderANumberThatTheLeaderHasClaimed) {
  LeaderOptions fenced = options();
  fenced.fenced = true;
  begin(fenced);
  join(3);
  join(4);
  lose(2);
  lose(1);
  EXPECT_THAT(told(a_second({0}), Kind::kPlan), ElementsAre(3)) << "one number after another";
  EXPECT_EQ(leader_.to_claim(), std::nullopt);
  EXPECT_THAT(say(3, Kind::kReady, 1), IsEmpty());
  EXPECT_EQ(leader_.to_claim(), 1);
  EXPECT_THAT(leader_.on_claimed(1, false, 5, now_), IsEmpty()) << "another leader has formed it";
  Leader::Sends offered = a_second({0});
  EXPECT_EQ(first(offered, Kind::kPlan).generation, 6);
  say(3, Kind::kReady, 6);
  EXPECT_THAT(told(leader_.on_claimed(6, true, 6, now_), Kind::kStart), ElementsAre(3));
  EXPECT_THAT(told(a_second({0}), Kind::kPlan), ElementsAre(4));
}

// The agent itself was stopped for so long that it has ended its ranks.
TEST_F(PlaceOfALostHost, MayBeTakenByTheSameHost) {
  begin(options());
  AgentMessage stood = of(Kind::kFailed, 0);
  stood.stood_still = true;
  stood.text = "it was stopped";
  EXPECT_THAT(leader_.on_message(2, stood, "", now_), IsEmpty()) << "its ranks are ending";
  leader_.on_message(2, of(Kind::kEnded, 0), "", now_);
  const Leader::Sends offered = a_second({0, 1});
  EXPECT_THAT(told(offered, Kind::kPlan), ElementsAre(2));
  EXPECT_EQ(first(offered, Kind::kPlan).plan.first_rank, 4);
  EXPECT_THAT(told(say(2, Kind::kReady, 1), Kind::kStart), ElementsAre(2));
  EXPECT_THAT(lines(), HasSubstr("was stopped, and has ended its ranks; ranks 4 to 5 are started "
                                 "on host2"));
}

TEST_F(PlaceOfALostHost, IsOfferedToTheNextWhereRanksCannotBeStarted) {
  begin(options());
  join(3);
  join(4);
  lose(2);
  a_second({0, 1});
  say(3, Kind::kReady, 1);
  AgentMessage failed = of(Kind::kFailed, 1);
  failed.text = "no such program";
  EXPECT_THAT(leader_.on_message(3, failed, "", now_), IsEmpty());
  lines();
  leader_.on_message(3, of(Kind::kEnded, 1), "", now_);
  const Leader::Sends offered = a_second({0, 1});
  EXPECT_THAT(told(offered, Kind::kPlan), ElementsAre(4)) << "not to the same";
  say(4, Kind::kReady, 2);
  EXPECT_THAT(lines(), HasSubstr("could not start its ranks: no such program; ranks 4 to 5 are "
                                 "started on host4"));
}

TEST_F(PlaceOfALostHost, DoesNotKeepTheJobFromBeingStopped) {
  begin(options());
  lose(2);
  a_second({0, 1});
  say(0, Kind::kEnded, 0);
  say(1, Kind::kEnded, 0);
  AgentMessage signal;
  signal.kind = Kind::kSignal;
  signal.number = SIGTERM;
  EXPECT_EQ(first(leader_.on_message(0, signal, "", now_), Kind::kOver).exit_code, 1)
      << "its ranks had not done their work";
}

// SIGTERM to an agent that does not lead, as on a machine that is drained.
TEST_F(PlaceOfALostHost, IsGivenUpBySignalWhereASpareWaits) {
  begin(options());
  join(3);
  lines();
  now_ += milliseconds(500);
  EXPECT_THAT(ask_to_leave(2), IsEmpty()) << "other agents may get the signal, too";
  now_ += milliseconds(600);
  leader_.on_time(now_);
  EXPECT_EQ(leader_.next_time(), now_ + milliseconds(400)) << "a second, between two heartbeats";
  now_ += milliseconds(400);
  Leader::Sends sends = leader_.on_time(now_);
  EXPECT_THAT(told(sends, Kind::kLeave), ElementsAre(2));
  EXPECT_THAT(told(sends, Kind::kStop), IsEmpty());
  EXPECT_THAT(told(sends, Kind::kPlan), IsEmpty()) << "its ranks have not ended";
  EXPECT_THAT(told(a_second({0, 1}), Kind::kLeave), ElementsAre(2)) << "until it has obeyed";
  leader_.on_message(2, of(Kind::kEnded, 0), "", now_);
  sends = a_second({0, 1});
  EXPECT_THAT(told(sends, Kind::kPlan), ElementsAre(3)) << "and not the host that has left";
  EXPECT_EQ(first(sends, Kind::kPlan).plan.first_rank, 4);
  EXPECT_THAT(lose(2), IsEmpty());
  EXPECT_THAT(told(say(3, Kind::kReady, 1), Kind::kStart), ElementsAre(3));
  EXPECT_EQ(
      lines(),
      "[lockstep] the agent on host2 (10.0.0.9, ranks 4 to 5) left the job: SIGTERM; ranks 4 to 5 "
      "are started on host3\n");
}

TEST_F(PlaceOfALostHost, IsNotGivenUpWhereTheWholeJobIsStopped) {
  for (const int stopped : {0, 1}) {
    begin(options());
    join(3);
    ask_to_leave(2);
    AgentMessage signal;
    signal.number = SIGTERM;
    signal.kind = Kind::kSignal;
    EXPECT_THAT(told(leader_.on_message(stopped, signal, "", now_), Kind::kSignal),
                ElementsAre(stopped == 0 ? 1 : 0, 2, 3));
    EXPECT_THAT(told(a_second({0, 1}), Kind::kLeave), IsEmpty());
    for (const int member : {0, 1}) say(member, Kind::kEnded, 0);
    EXPECT_EQ(first(say(2, Kind::kEnded, 0), Kind::kOver).exit_code, 0) << "all have saved";
  }
}

// A question is repeated with every heartbeat until it is answered.
TEST_F(PlaceOfALostHost, IsNotAskedForTwiceByOneSignal) {
  begin(options());
  join(3);
  AgentMessage signal;
  signal.number = SIGTERM;
  signal.kind = Kind::kSignal;
  leader_.on_message(0, signal, "", now_);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(ask_to_leave(2), IsEmpty()) << "it stops already";
  begin(options());
  join(3, /*ranks=*/1);
  ask_to_leave(2);
  a_second({0, 1});
  for (int i = 0; i < 3; ++i) EXPECT_THAT(ask_to_leave(2), IsEmpty()) << "and that again";
  signal.number = SIGTERM;
  EXPECT_EQ(first(leader_.on_message(2, signal, "", now_), Kind::kSignal).number, SIGKILL)
      << "a second signal";
}

// Ranks of that host may run until its agent has noticed that it is not heard.
TEST_F(PlaceOfALostHost, IsNotFreeBeforeTheRanksOfAHostThatFellSilentHaveEnded) {
  begin(options());
  join(3);
  ask_to_leave(2);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kLeave), ElementsAre(2));
  for (int s = 1; s < 8 + 6; ++s) {
    const Leader::Sends sends = a_second({0, 1});
    say(3, Kind::kBeat, -1);
    EXPECT_THAT(told(sends, Kind::kPlan), IsEmpty()) << s;
  }
  a_second({0, 1});
  say(3, Kind::kBeat, -1);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kPlan), ElementsAre(3));
}

TEST_F(PlaceOfALostHost, IsNotGivenUpByRanksThatHaveDoneTheirLastStep) {
  begin(options());
  join(3);
  ask_to_leave(2);
  now_ += seconds(1);
  say(1, Kind::kBeat, 0, /*past_end=*/true);
  const Leader::Sends sends = leader_.on_time(now_);
  EXPECT_THAT(told(sends, Kind::kLeave), IsEmpty());
  EXPECT_THAT(told(sends, Kind::kStop), Contains(2)) << "they may end what they do";
}

TEST_F(PlaceOfALostHost, IsNotTakenWhereTheRanksOfTheHostThatLeavesHadFinished) {
  begin(options());
  join(3);
  ask_to_leave(2);
  a_second({0, 1});
  say(2, Kind::kEnded, 0);
  EXPECT_THAT(told(a_second({0, 1}), Kind::kPlan), IsEmpty());
  say(0, Kind::kEnded, 0);
  EXPECT_EQ(first(say(1, Kind::kEnded, 0), Kind::kOver).exit_code, 0);
}

// Two spares of one rank each do not help a host of two ranks.
TEST_F(PlaceOfALostHost, IsGivenUpByAllThatAskOrByNone) {
  begin(options());
  join(3, /*ranks=*/2);
  join(4, /*ranks=*/1);
  ask_to_leave(1);
  ask_to_leave(2);
  const Leader::Sends sends = a_second({0});
  EXPECT_THAT(told(sends, Kind::kLeave), IsEmpty());
  EXPECT_THAT(told(sends, Kind::kSignal), ElementsAre(0, 2, 3, 4));
}

TEST_F(PlaceOfALostHost, IsGivenUpByNoMoreHostsThanThereAreSpares) {
  begin(options());
  join(3);
  ask_to_leave(1);
  ask_to_leave(2);
  const Leader::Sends sends = a_second({0});
  EXPECT_THAT(told(sends, Kind::kLeave), IsEmpty());
  EXPECT_THAT(told(sends, Kind::kStop), Contains(1)) << "the job stops, as it was asked to";
  EXPECT_THAT(told(sends, Kind::kSignal), ElementsAre(0, 2, 3));
}

TEST_F(PlaceOfALostHost, IsNotGivenUpWhereNoSpareWaits) {
  begin(options());
  join(3, /*ranks=*/1);
  ask_to_leave(2);
  const Leader::Sends sends = a_second({0, 1});
  EXPECT_THAT(told(sends, Kind::kSignal), ElementsAre(0, 1, 3));
  EXPECT_THAT(told(sends, Kind::kStop), Contains(2));
  for (const int member : {0, 1}) say(member, Kind::kEnded, 0);
  EXPECT_EQ(first(say(2, Kind::kEnded, 0), Kind::kOver).exit_code, 0);
}

TEST_F(PlaceOfALostHost, IsNotLeftEmptyWhereAnAgentEndsItsRanksEarly) {
  begin(options());
  EXPECT_THAT(told(leader_.on_message(2, of(Kind::kEnded, 0), "", now_), Kind::kStop),
              ElementsAre(0, 1));
  say(0, Kind::kEnded, 0);
  EXPECT_EQ(first(say(1, Kind::kEnded, 0), Kind::kOver).exit_code, 1);
}

TEST(FollowerThatIsASpare, LearnsItOnceAlsoWhereItCameBeforeTheJobBegan) {
  AgentMessage join;
  join.kind = Kind::kJoin;
  Follower follower(join);
  AgentMessage sign, wait;
  wait.kind = Kind::kWait;
  wait.text = "a spare";
  EXPECT_TRUE(follower.on_message(sign).hear.empty());
  EXPECT_EQ(follower.on_message(wait).hear.size(), 1u);
  EXPECT_TRUE(follower.on_message(wait).hear.empty());
}

// Spares would be enough for a generation at once.
TEST_F(PlaceOfALostHost, AnotherLeaderWaitsForTheHostsThatRanUnderTheLostOne) {
  leader_ = Leader(options(), now_);
  for (const int member : {0, 3, 4}) EXPECT_THAT(join(member, 2, /*seen=*/0), IsEmpty());
  EXPECT_THAT(join(1, 2, 0, /*ran_with=*/3), IsEmpty()) << "host 2 may still end its ranks";
  EXPECT_THAT(told(join(2, 2, 0, /*ran_with=*/3), Kind::kPlan), ElementsAre(0, 1, 2))
      << "all but the one that led";
}

TEST_F(PlaceOfALostHost, HostsWithTheLowestNumbersBeginTheJob) {
  LeaderOptions numbered = options();
  numbered.numbered = true;
  numbered.nodes = 2;
  numbered.last_call = seconds(5);
  leader_ = Leader(numbered, now_);
  const auto join_as = [&](int member, int number) {
    AgentMessage message;
    message.kind = Kind::kJoin;
    message.agent = "agent" + std::to_string(member);
    message.introduction = {number, "host" + std::to_string(number), "", 1, 2};
    message.nodes = 2;
    message.run_id = "job";
    return leader_.on_message(member, message, member == 0 ? "" : "10.0.0.9", now_);
  };
  EXPECT_THAT(join_as(0, 0), IsEmpty());
  EXPECT_THAT(join_as(1, 2), IsEmpty()) << "a spare; number 1 is on its way";
  EXPECT_THAT(told(join_as(2, 1), Kind::kPlan), ElementsAre(0, 2));
  leader_ = Leader(numbered, now_);
  join_as(0, 0);
  join_as(1, 2);
  now_ += seconds(6);
  EXPECT_THAT(told(leader_.on_time(now_), Kind::kPlan), ElementsAre(0, 1))
      << "number 1 did not come in time";
}

}  // namespace leader_vacancies_test
}  // namespace lockstep::inline v0::launch
