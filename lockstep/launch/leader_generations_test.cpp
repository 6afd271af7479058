// The Leader's decisions when ranks fail and hosts come and go, and the Follower's reactions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/follower.h"
#include "lockstep/launch/leader.h"
#include "lockstep/launch/leader_sends_test.h"

namespace lockstep::inline v0::launch {
namespace leader_generations_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = AgentMessage::Kind;
using leader_sends_test::told;

class GenerationsOfALeader : public testing::Test {
 protected:
  static LeaderOptions options() {
    LeaderOptions options;
    options.min_nodes = 2;
    options.nodes = 4;
    options.run_id = "job";
    options.on_failure = OnFailure::kRestart;
    options.max_restarts = 1;
    options.last_call = seconds(5);
    return options;
  }
  static AgentMessage join_message(int member, int number = -1, const std::string& agent = "",
                                   int seen = -1) {
    AgentMessage message;
    message.kind = Kind::kJoin;
    message.agent = agent.empty() ? "agent" + std::to_string(member) : agent;
    message.introduction = {number, "host" + std::to_string(member), "", 1, 2};
    message.nodes = 4;
    message.min_nodes = 2;
    message.run_id = "job";
    message.port = static_cast<uint16_t>(5000 + member);
    message.seen = seen;
    return message;
  }
  Leader::Sends join(int member, int number = -1, const std::string& agent = "", int seen = -1) {
    return say(member, join_message(member, number, agent, seen));
  }
  Leader::Sends say(int member, const AgentMessage& message) {
    return leader_.on_message(member, message, member == 0 ? "" : "10.0.0.9", now_);
  }
  Leader::Sends say(int member, Kind kind, int generation, int signal = 0) {
    AgentMessage message;
    message.kind = kind;
    message.generation = generation;
    if (kind == Kind::kFailed) message.failure.emplace().signal = signal;
    return say(member, message);
  }
  Leader::Sends wait(milliseconds time) {
    now_ += time;
    for (int member = 1; member < 10; ++member) {
      if (leader_.present(member)) say(member, Kind::kBeat, -1);
    }
    return leader_.on_time(now_);
  }
  // The members have their plans; returns the messages sent to them.
  Leader::Sends ready(const std::vector<int>& members, int generation) {
    Leader::Sends last;
    for (const int member : members) last = say(member, Kind::kReady, generation);
    for (const int member : members) say(member, Kind::kBeat, generation);
    return last;
  }
  Leader::Sends ended(const std::vector<int>& members, int generation) {
    Leader::Sends last;
    for (const int member : members) last = say(member, Kind::kEnded, generation);
    return last;
  }
  // Hosts 0, 1 and 2 run generation 0.
  void running() {
    for (const int member : {0, 1, 2}) join(member);
    wait(seconds(5));
    EXPECT_THAT(told(ready({0, 1, 2}, 0), Kind::kStart), ElementsAre(0, 1, 2));
  }

  Leader::Time now_{};
  Leader leader_{options(), now_};
};

TEST_F(GenerationsOfALeader, AtMostHostsBeginAtOnceAndEnoughAfterTheLastCall) {
  for (const int member : {0, 1, 2}) EXPECT_THAT(join(member), IsEmpty());
  EXPECT_THAT(told(wait(seconds(4)), Kind::kPlan), IsEmpty());
  EXPECT_EQ(leader_.next_time(), Leader::Time{} + seconds(5));
  EXPECT_THAT(told(join(3), Kind::kPlan), ElementsAre(0, 1, 2, 3)) << "nobody else can come";
  leader_ = Leader(options(), now_);
  join(0);
  EXPECT_THAT(told(wait(seconds(60)), Kind::kPlan), IsEmpty()) << "too few";
  join(1);
  wait(seconds(3));
  join(2);
  EXPECT_THAT(told(wait(seconds(4)), Kind::kPlan), IsEmpty()) << "the last one came 4 s ago";
  EXPECT_THAT(told(wait(seconds(1)), Kind::kPlan), ElementsAre(0, 1, 2));
}

TEST_F(GenerationsOfALeader, NobodyStartsBeforeAllHaveTheirPlans) {
  for (const int member : {0, 1, 2, 3}) join(member);
  EXPECT_THAT(ready({0, 1, 2}, 0), IsEmpty());
  EXPECT_THAT(told(wait(seconds(1)), Kind::kPlan), ElementsAre(3)) << "it is told again";
  const auto sends = leader_.on_lost(3, "closed", now_);
  EXPECT_THAT(told(sends, Kind::kPlan), IsEmpty()) << "it may come again";
  const auto next = wait(seconds(5));
  ASSERT_THAT(told(next, Kind::kPlan), ElementsAre(0, 1, 2));
  EXPECT_EQ(next.front().message.plan.generation, 1) << "a number is used once";
  EXPECT_THAT(ready({0, 1, 2}, 0), IsEmpty()) << "stale";
  EXPECT_THAT(told(ready({0, 1, 2}, 1), Kind::kStart), ElementsAre(0, 1, 2));
}

TEST_F(GenerationsOfALeader, AFailedRankStartsAllAnewOnTheSameHostsAtOnce) {
  running();
  EXPECT_THAT(told(say(1, Kind::kFailed, 0, SIGKILL), Kind::kStop), ElementsAre(0, 2));
  const auto sends = ended({1, 2, 0}, 0);
  ASSERT_THAT(told(sends, Kind::kPlan), ElementsAre(0, 1, 2)) << "without a last call";
  EXPECT_EQ(sends[0].message.plan.generation, 1);
  EXPECT_EQ(sends[0].message.plan.restarts, 1);
  const auto start = ready({0, 1, 2}, 1);
  EXPECT_THAT(start[0].message.text,
              AllOf(HasSubstr("[lockstep] restart 1 of 1: rank 0 on host1 killed by SIGKILL"),
                    testing::EndsWith("sent it)\n")));
  EXPECT_EQ(start[1].message.text, "") << "one agent tells";
  // No restarts are left.
  say(2, Kind::kFailed, 1, SIGSEGV);
  const auto over = ended({0, 1, 2}, 1);
  EXPECT_THAT(told(over, Kind::kOver), ElementsAre(0, 1, 2));
  EXPECT_EQ(over[0].message.exit_code, 1);
}

TEST_F(GenerationsOfALeader, AVanishedHostIsNoRestartThatCounts) {
  running();
  for (int generation = 0; generation < 3; ++generation) {
    EXPECT_THAT(told(leader_.on_lost(2 + generation, "closed", now_), Kind::kStop),
                ElementsAre(0, 1));
    EXPECT_THAT(told(ended({0, 1}, generation), Kind::kPlan), IsEmpty()) << "it may come again";
    if (generation == 2) {
      EXPECT_THAT(told(wait(seconds(5)), Kind::kPlan), ElementsAre(0, 1));
      break;
    }
    join(3 + generation);
    ASSERT_THAT(told(wait(seconds(5)), Kind::kPlan), ElementsAre(0, 1, 3 + generation));
    ready({0, 1, 3 + generation}, generation + 1);
  }
  const auto start = ready({0, 1}, 3);
  EXPECT_THAT(start[0].message.text,
              AllOf(HasSubstr("restart, not counted: the agent on host4 (10.0.0.9, ranks 4 to 5) "
                              "vanished: closed; 3 hosts -> 2, 6 ranks -> 4\n")));
}

TEST_F(GenerationsOfALeader, NewcomersAreTakenInTogetherAfterTheirLastCall) {
  running();
  const auto waits = join(7);
  EXPECT_THAT(told(waits, Kind::kWait), ElementsAre(7));
  const auto stops = wait(milliseconds(1));
  EXPECT_THAT(told(stops, Kind::kStop), ElementsAre(0, 1, 2)) << "nobody else can come";
  EXPECT_EQ(stops[0].message.number, SIGTERM) << "nothing failed: ranks have the time to save";
  EXPECT_THAT(told(ended({0, 1, 2}, 0), Kind::kPlan), ElementsAre(0, 1, 2, 7));
}

TEST_F(GenerationsOfALeader, AJobThatIsNearlyDoneTakesNobodyIn) {
  running();
  say(1, Kind::kEnded, 0);
  join(7);
  EXPECT_THAT(told(wait(seconds(9)), Kind::kStop), IsEmpty());
}

TEST_F(GenerationsOfALeader, AnAgentThatConnectsAnewReplacesItself) {
  running();
  const auto sends = join(7, -1, "agent2", 0);
  EXPECT_THAT(told(sends, Kind::kStop), ElementsAre(0, 1)) << "its ranks are gone";
  EXPECT_FALSE(leader_.present(2));
  EXPECT_THAT(told(ended({0, 1}, 0), Kind::kPlan), IsEmpty());
  EXPECT_THAT(told(wait(seconds(5)), Kind::kPlan), ElementsAre(0, 1, 7));
}

// Its link may be cut, and its ranks may use their whole grace to end.
TEST_F(GenerationsOfALeader, RanksOfASilentHostHaveEndedBeforeTheNextGenerationBegins) {
  running();
  for (int second = 1; second <= 8; ++second) {
    now_ += seconds(1);
    say(1, Kind::kBeat, 0);
    leader_.on_time(now_);
  }
  ASSERT_FALSE(leader_.present(2));
  ended({0, 1}, 0);
  join(3);
  join(4);
  // A beat, the grace, and a moment.
  EXPECT_THAT(told(wait(milliseconds(6999)), Kind::kPlan), IsEmpty()) << "as many as there may be";
  EXPECT_THAT(told(wait(milliseconds(1)), Kind::kPlan), ElementsAre(0, 1, 3, 4));
}

// The host may not know that its ranks are only asked to stop, which gives them the other grace.
TEST_F(GenerationsOfALeader, RanksOfAHostThatFellSilentWhileTheyWereAskedToStopHaveTheLongerGrace) {
  LeaderOptions hasty = options();
  hasty.stop_grace = seconds(1);
  leader_ = Leader(hasty, now_);
  running();
  join(3);
  EXPECT_THAT(told(leader_.on_time(now_), Kind::kStop), ElementsAre(0, 1, 2));
  ended({0, 1}, 0);
  for (int second = 1; second <= 8; ++second) {
    now_ += seconds(1);
    for (const int member : {1, 3}) say(member, Kind::kBeat, 0);
    leader_.on_time(now_);
  }
  ASSERT_FALSE(leader_.present(2));
  EXPECT_THAT(told(wait(milliseconds(6999)), Kind::kPlan), IsEmpty());
  EXPECT_EQ(leader_.not_before(), now_ + milliseconds(1));
  EXPECT_THAT(told(wait(milliseconds(1)), Kind::kPlan), ElementsAre(0, 1, 3));
}

TEST_F(GenerationsOfALeader, WhoTakesOverWaitsForTheRanksOfTheOneThatLed) {
  LeaderOptions taking_over = options();
  taking_over.not_before = now_ + seconds(7);
  leader_ = Leader(taking_over, now_);
  for (const int member : {0, 1, 2, 3}) EXPECT_THAT(told(join(member), Kind::kPlan), IsEmpty());
  EXPECT_THAT(told(wait(seconds(7)), Kind::kPlan), ElementsAre(0, 1, 2, 3));
}

TEST_F(GenerationsOfALeader, AnAgentThatStoodStillIsNoFailureThatCountsAndStaysInTheJob) {
  running();
  AgentMessage failed;
  failed.kind = Kind::kFailed;
  failed.generation = 0;
  failed.stood_still = true;
  failed.text = "the agent stood still";
  EXPECT_THAT(told(say(2, failed), Kind::kStop), ElementsAre(0, 1));
  EXPECT_THAT(told(ended({0, 1, 2}, 0), Kind::kPlan), ElementsAre(0, 1, 2));
  const auto sends = ready({0, 1, 2}, 1);
  ASSERT_THAT(told(sends, Kind::kStart), ElementsAre(0, 1, 2));
  EXPECT_EQ(sends[0].message.text,
            "[lockstep] restart, not counted: host2: the agent stood still\n");
}

// Applies whatever its last message lacks.
TEST_F(GenerationsOfALeader, WhereNothingIsStartedAnewAnAgentThatStoodStillIsTheJobsFailure) {
  LeaderOptions stops = options();
  stops.on_failure = OnFailure::kStop;
  leader_ = Leader(stops, now_);
  running();
  AgentMessage failed;
  failed.kind = Kind::kFailed;
  failed.generation = 0;
  failed.stood_still = true;
  failed.text = "the agent stood still";
  say(2, failed);
  const auto over = ended({0, 1, 2}, 0);
  ASSERT_THAT(told(over, Kind::kOver), ElementsAre(0, 1, 2));
  EXPECT_EQ(over[0].message.exit_code, 1);
  EXPECT_EQ(over[0].message.text, "[lockstep] host2: the agent stood still\n");
}

TEST_F(GenerationsOfALeader, OneThatHasSeenMoreRaisesTheNumber) {
  join(0);
  join(1, -1, "", 6);
  const auto sends = wait(seconds(15));
  ASSERT_FALSE(sends.empty());
  EXPECT_EQ(sends[0].message.plan.generation, 7);
}

TEST_F(GenerationsOfALeader, TooFewHostsAreWaitedForAndThenTheReasonIsTold) {
  running();
  leader_.on_lost(1, "closed", now_);
  leader_.on_lost(2, "closed", now_);
  EXPECT_THAT(ended({0}, 0), IsEmpty());
  const auto sends = wait(seconds(600));
  ASSERT_THAT(told(sends, Kind::kOver), ElementsAre(0));
  EXPECT_THAT(sends[0].message.text,
              AllOf(HasSubstr("the agent on host1"), HasSubstr("1 host is left of at least 2")));
}

TEST_F(GenerationsOfALeader, TheSecondAgentOfANumberIsThereForWhenTheFirstIsGone) {
  LeaderOptions numbered = options();
  numbered.numbered = true;
  leader_ = Leader(numbered, now_);
  for (const int member : {0, 1, 2}) join(member, member);
  wait(seconds(5));
  ready({0, 1, 2}, 0);
  // Host 2 died silently, and has returned before that was noticed.
  EXPECT_THAT(told(join(7, 2), Kind::kWait), ElementsAre(7));
  EXPECT_EQ(leader_.joined(), 3);
  EXPECT_THAT(told(wait(seconds(6)), Kind::kStop), IsEmpty()) << "it is nobody new";
  leader_.on_lost(2, "silent", now_);
  EXPECT_EQ(leader_.joined(), 3);
  ended({0, 1}, 0);
  EXPECT_THAT(told(wait(seconds(5)), Kind::kPlan), ElementsAre(0, 1, 7));
}

TEST_F(GenerationsOfALeader, ASignalBetweenGenerationsEndsTheJob) {
  running();
  leader_.on_lost(2, "closed", now_);
  ended({0, 1}, 0);
  AgentMessage signal;
  signal.kind = Kind::kSignal;
  signal.number = SIGINT;
  const auto sends = say(1, signal);
  EXPECT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1));
}

TEST_F(GenerationsOfALeader, ASignalWhileRanksAreStoppedForNewcomersEndsTheJob) {
  running();
  join(7);
  ASSERT_THAT(told(wait(milliseconds(1)), Kind::kStop), ElementsAre(0, 1, 2));
  AgentMessage signal;
  signal.kind = Kind::kSignal;
  signal.number = SIGINT;
  EXPECT_THAT(told(say(1, signal), Kind::kSignal), ElementsAre(0, 2, 7));
  const auto sends = ended({0, 1, 2}, 0);
  ASSERT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1, 2, 7));
  EXPECT_EQ(sends[0].message.exit_code, 1);
  EXPECT_THAT(sends[0].message.text, HasSubstr("the job was stopped by SIGINT"));
}

TEST_F(GenerationsOfALeader, AFailureIsStillTheCauseWhenASignalComesAfterIt) {
  running();
  say(1, Kind::kFailed, 0, SIGSEGV);
  now_ += milliseconds(10);
  AgentMessage signal;
  signal.kind = Kind::kSignal;
  signal.number = SIGTERM;
  say(0, signal);
  const auto sends = ended({0, 1, 2}, 0);
  ASSERT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1, 2)) << "no other generation";
  ASSERT_TRUE(sends[0].message.failure);
  EXPECT_EQ(sends[0].message.failure->signal, SIGSEGV);
}

TEST_F(GenerationsOfALeader, NobodyIsWokenForWhatCannotBeDone) {
  LeaderOptions standby = options();
  standby.endpoints = 2;
  leader_ = Leader(standby, now_);
  for (const int member : {0, 1}) {
    AgentMessage message = join_message(member);
    message.known = {{.generation = 0, .begun = true, .by = "x", .agents = {"agent0", "x", "y"}}};
    say(member, message);
  }
  EXPECT_THAT(told(wait(seconds(6)), Kind::kPlan), IsEmpty());
  ASSERT_TRUE(leader_.lacks_majority());
  EXPECT_GT(leader_.next_time(), now_) << "the last call is over";
  leader_ = Leader(options(), now_);
  running();
  join(7);
  AgentMessage signal;
  signal.kind = Kind::kSignal;
  signal.number = SIGINT;
  say(0, signal);
  wait(seconds(2));
  EXPECT_GT(leader_.next_time(), now_) << "nobody is taken in any more";
}

TEST_F(GenerationsOfALeader, ANumberThatCannotBeWrittenEndsTheJobThoughItsMembersAreReady) {
  LeaderOptions fenced = options();
  fenced.fenced = true;
  leader_ = Leader(fenced, now_);
  for (const int member : {0, 1, 2, 3}) join(member);
  EXPECT_THAT(ready({0, 1, 2, 3}, 0), IsEmpty());
  ASSERT_EQ(leader_.to_claim(), 0);
  Leader::Sends sends;
  for (int second = 0; second < 601 && !leader_.over(); ++second) {
    for (const int member : {0, 1, 2, 3}) say(member, Kind::kReady, 0);  // repeated with every beat
    sends = wait(seconds(1));
  }
  ASSERT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sends[0].message.text, HasSubstr("could not be written within 600 s"));
}

TEST(Follower, TakesEachWordOnceAndRepeatsWhatIsNotAnswered) {
  AgentMessage join;
  join.kind = Kind::kJoin;
  Follower follower(join);
  EXPECT_EQ(follower.beat().kind, Kind::kJoin);
  AgentMessage word;
  word.kind = Kind::kPlan;
  word.plan.generation = 3;
  EXPECT_EQ(follower.on_message(word).say.front().kind, Kind::kReady);
  EXPECT_EQ(follower.beat().kind, Kind::kReady);
  AgentMessage start;
  start.kind = Kind::kStart;
  start.generation = 2;
  EXPECT_TRUE(follower.on_message(start).hear.empty()) << "of an older one";
  start.generation = 3;
  EXPECT_EQ(follower.on_message(start).hear.front().plan.generation, 3);
  EXPECT_TRUE(follower.on_message(start).hear.empty()) << "twice";
  EXPECT_TRUE(follower.on_message(word).say.empty()) << "it runs already";
  AgentMessage failed;
  failed.kind = Kind::kFailed;
  EXPECT_EQ(follower.tell(failed).generation, 3);
  EXPECT_EQ(follower.beat().kind, Kind::kFailed);
  AgentMessage stop;
  stop.kind = Kind::kStop;
  stop.generation = 3;
  EXPECT_EQ(follower.on_message(stop).hear.size(), 1u);
  EXPECT_TRUE(follower.on_message(stop).hear.empty());
  EXPECT_EQ(follower.beat().kind, Kind::kBeat) << "that is an answer";
  AgentMessage ended;
  ended.kind = Kind::kEnded;
  follower.tell(ended);
  EXPECT_EQ(follower.beat().kind, Kind::kEnded);
  word.plan.generation = 2;
  EXPECT_TRUE(follower.on_message(word).say.empty());
  word.plan.generation = 4;
  EXPECT_EQ(follower.on_message(word).say.front().generation, 4);
  EXPECT_EQ(follower.seen(), 4);
  // It was stopped before it was told to start.
  stop.generation = 4;
  EXPECT_EQ(follower.on_message(stop).say.front().kind, Kind::kEnded);
  start.generation = 4;
  EXPECT_TRUE(follower.on_message(start).hear.empty());
}

// From the name its ranks know what they have left themselves (train/run_folder.h).
TEST_F(GenerationsOfALeader, AJobHasOneNameInAllGenerationsWhoeverLeads) {
  const auto name_in = [](const Leader::Sends& sends) {
    std::set<std::string> names;
    for (const auto& [to, message] : sends)
      if (message.kind == Kind::kPlan) names.insert(message.plan.job);
    return names;
  };
  LeaderOptions named = options();
  named.job = "first";
  leader_ = Leader(named, now_);
  for (const int member : {0, 1, 2}) join(member);
  EXPECT_THAT(name_in(wait(seconds(5))), ElementsAre("first"));
  ready({0, 1, 2}, 0);
  say(1, Kind::kFailed, 0, SIGSEGV);
  EXPECT_THAT(name_in(ended({0, 1, 2}, 0)), ElementsAre("first")) << "a failure";

  // Another agent leads after a restart; an agent that joins it knows the name.
  named.job = "second";
  leader_ = Leader(named, now_);
  join(0);
  AgentMessage knows = join_message(1, -1, "", 1);
  knows.job = "first";
  say(1, knows);
  EXPECT_THAT(name_in(wait(seconds(15))), ElementsAre("first")) << "a leader that was lost";
  EXPECT_EQ(decode_agent_message(encode(knows)).job, "first");
}

// Those that have not joined may still have to notice the loss, and then end their ranks.
TEST_F(GenerationsOfALeader, HostsThatRanUnderALostLeaderAreWaitedForUntilTheirRanksMustHaveEnded) {
  const auto meets = [&] {
    leader_ = Leader(options(), now_);
    join(0);
    join(1, -1, "", /*seen=*/3);
  };
  meets();
  EXPECT_THAT(told(wait(milliseconds(14'500)), Kind::kPlan), IsEmpty());
  EXPECT_EQ(leader_.next_time(), now_ + milliseconds(500))
      << "silence, a heartbeat, grace and a second";
  EXPECT_THAT(told(wait(milliseconds(500)), Kind::kPlan), ElementsAre(0, 1));
  meets();
  join(2);
  EXPECT_THAT(told(join(3), Kind::kPlan), ElementsAre(0, 1, 2, 3)) << "no other can come";
}

TEST_F(GenerationsOfALeader, EnoughHostsDoNotFailBecauseOthersAreWaitedForLonger) {
  LeaderOptions hasty = options();
  hasty.join_timeout = seconds(10);
  leader_ = Leader(hasty, now_);
  join(0);
  join(1, -1, "", /*seen=*/3);
  EXPECT_THAT(wait(seconds(12)),
              testing::Not(testing::Contains(testing::Field(
                  &Leader::Send::message, testing::Field(&AgentMessage::kind, Kind::kOver)))));
  EXPECT_GT(leader_.next_time(), now_) << "it does not spin";
  EXPECT_THAT(told(wait(seconds(3)), Kind::kPlan), ElementsAre(0, 1));
}

// More agents than the most hosts may be there: newcomers wait.
TEST_F(GenerationsOfALeader, NewcomersDoNotReplaceHostsThatMayStillEndTheirRanks) {
  leader_ = Leader(options(), now_);
  join(0);
  AgentMessage ran = join_message(1, -1, "", 3);
  ran.ran_with = 4;
  say(1, ran);
  for (const int newcomer : {2, 3}) EXPECT_THAT(join(newcomer), IsEmpty());
  ran.agent = "agent4";
  EXPECT_THAT(say(4, ran), IsEmpty()) << "one of them and the former leader are missing";
  ran.agent = "agent5";
  EXPECT_FALSE(told(say(5, ran), Kind::kPlan).empty());
}

// An agent that was elected ends its ranks after it has closed the connections of the others.
TEST_F(GenerationsOfALeader, RanksOfTheAgentThatLedAreWaitedForAsLongAsTheyMayRun) {
  for (const int member : {0, 1, 2}) join(member);
  AgentMessage last = join_message(3, -1, "", 2);
  last.old_ranks_for = seconds(7);
  EXPECT_THAT(say(3, last), IsEmpty());
  EXPECT_THAT(told(wait(seconds(6)), Kind::kPlan), IsEmpty());
  EXPECT_THAT(told(wait(seconds(1)), Kind::kPlan), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(decode_agent_message(encode(last)).old_ranks_for, seconds(7));
}

TEST_F(GenerationsOfALeader, OthersMayBeginWhereEnoughHostsAreNotHeard) {
  LeaderOptions some = options();
  leader_ = Leader(some, now_);
  for (const int member : {0, 1}) join(member);
  EXPECT_TRUE(leader_.others_may_begin()) << "2 of at most 4, of which 2 are enough";
  join(2);
  EXPECT_FALSE(leader_.others_may_begin());
  some.on_failure = OnFailure::kStop;
  leader_ = Leader(some, now_);
  join(0);
  EXPECT_FALSE(leader_.others_may_begin()) << "there is one generation";
}

TEST_F(GenerationsOfALeader, WhoWaitsInVainIsToldToTheOtherHosts) {
  running();
  for (const Kind kind : {Kind::kWaitInVain, Kind::kStoodStill})
    EXPECT_THAT(told(say(1, kind, 0), kind), ElementsAre(0, 2));
  EXPECT_THAT(told(say(0, Kind::kWaitInVain, 0), Kind::kWaitInVain), ElementsAre(1, 2));
  EXPECT_THAT(say(1, Kind::kWaitInVain, 7), IsEmpty()) << "of another generation";
}

// The exit code is the same on all hosts.
TEST_F(GenerationsOfALeader, OutputThatOneHostLostIsAFailureOfAll) {
  running();
  ended({0, 1}, 0);
  AgentMessage last;
  last.kind = Kind::kEnded;
  last.generation = 0;
  last.finished = last.well = last.lost_output = true;
  for (const auto& [to, message] : say(2, last)) {
    EXPECT_EQ(message.kind, Kind::kOver);
    EXPECT_EQ(message.exit_code, 1);
    EXPECT_EQ(message.text, "");
  }
  EXPECT_TRUE(leader_.over());
}

}  // namespace leader_generations_test
}  // namespace lockstep::inline v0::launch
