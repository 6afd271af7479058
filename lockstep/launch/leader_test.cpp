// The first agent's decisions, and the agents' messages, orders and meeting place.
#include "lockstep/launch/leader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/core/errors.h"
#include "lockstep/launch/leader_sends_test.h"
#include "lockstep/launch/remote_order.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep::inline v0::launch {
namespace leader_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = AgentMessage::Kind;
using leader_sends_test::told;

TEST(NodePlan, HostsAreOrderedByNumberElseByName) {
  std::vector<NodeIntroduction> nodes(3);
  nodes[0].host = "node10";
  nodes[1].host = "node2";
  nodes[2].host = "alpha";
  EXPECT_THAT(order_nodes(nodes), ElementsAre(2, 1, 0));
  nodes[0].number = 0;
  nodes[1].number = 2;
  nodes[2].number = 1;
  EXPECT_THAT(order_nodes(nodes), ElementsAre(0, 2, 1));
  for (NodeIntroduction& node : nodes) node = {-1, "same", "10.0.0.1", 0, 1};
  nodes[0].address = "10.0.0.12";
  nodes[1].pid = 9;
  nodes[2].pid = 8;
  EXPECT_THAT(order_nodes(nodes), ElementsAre(2, 1, 0)) << "by address, then by pid";
}

TEST(NodePlan, RanksFollowTheOrderAndHostsWithoutRanksAreNotCounted) {
  std::vector<NodeIntroduction> nodes(3);
  nodes[0].ranks = 3;
  nodes[1].ranks = 0;
  nodes[2].ranks = 2;
  const auto plans = assign_ranks(nodes, {1, 2, 0});
  EXPECT_EQ(plans[2].node_rank, 0);
  EXPECT_EQ(plans[2].first_rank, 0);
  EXPECT_EQ(plans[0].node_rank, 1);
  EXPECT_EQ(plans[0].first_rank, 2);
  for (const NodePlan& plan : plans) {
    EXPECT_EQ(plan.nodes, 2);
    EXPECT_EQ(plan.world_size, 5);
  }
}

class LeaderTest : public testing::Test {
 protected:
  static AgentMessage join(const std::string& host, int number = -1, int ranks = 1) {
    AgentMessage message;
    message.kind = Kind::kJoin;
    message.introduction = {number, host, "", 100, ranks};
    message.nodes = 3;
    message.run_id = "job";
    message.port = 5000;
    return message;
  }
  static AgentMessage failed(int rank, int signal, int code = 0) {
    AgentMessage message;
    message.kind = Kind::kFailed;
    message.generation = 0;
    message.failure.emplace();
    message.failure->rank = rank;
    message.failure->signal = signal;
    message.failure->exit_code = code;
    return message;
  }
  static AgentMessage of(Kind kind, int number = 0) {
    AgentMessage message;
    message.kind = kind;
    message.number = number;
    message.generation = 0;
    return message;
  }
  static LeaderOptions options(bool numbered = false) {
    LeaderOptions options;
    options.nodes = 3;
    options.numbered = numbered;
    options.run_id = "job";
    return options;
  }
  // Hosts a (this one), b and c.
  Leader& running() {
    leader_.on_message(0, join("a"), "", start_);
    leader_.on_message(1, join("c"), "10.0.0.3", start_);
    leader_.on_message(2, join("b"), "10.0.0.2", start_);
    for (const int member : {0, 1, 2}) leader_.on_message(member, of(Kind::kReady), "", start_);
    for (const int member : {0, 1, 2}) leader_.on_message(member, of(Kind::kBeat), "", start_);
    return leader_;
  }
  // The message that all agents get in the end, after the remaining members have ended.
  AgentMessage end(std::vector<int> members, Leader::Time now) {
    for (const int member : members) {
      for (const auto& [to, message] : leader_.on_message(member, of(Kind::kEnded), "", now)) {
        if (message.kind == Kind::kOver) return message;
      }
    }
    return {};
  }

  const Leader::Time start_{};
  Leader leader_{options(), start_};
};

TEST_F(LeaderTest, PlansAreMadeWhenAllHaveJoined) {
  EXPECT_THAT(leader_.on_message(0, join("a"), "", start_), IsEmpty());
  EXPECT_THAT(leader_.on_message(1, join("c"), "10.0.0.3", start_), IsEmpty());
  EXPECT_TRUE(leader_.meeting());
  EXPECT_EQ(leader_.missing(), "1 more host");
  const auto sends = leader_.on_message(2, join("b", -1, 4), "10.0.0.2", start_);
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_EQ(sends[0].message.plan.first_rank, 0);
  EXPECT_EQ(sends[1].message.plan.first_rank, 5) << "c comes last";
  EXPECT_EQ(sends[2].message.plan.first_rank, 1);
  EXPECT_EQ(sends[2].message.plan.world_size, 6);
  EXPECT_EQ(sends[2].message.plan.master.host, "") << "the leader's own";
  EXPECT_EQ(sends[2].message.plan.master.port, 5000);
}

TEST_F(LeaderTest, MasterIsTheHostOfRankZero) {
  leader_.on_message(0, join("z"), "", start_);
  leader_.on_message(1, join("c"), "10.0.0.3", start_);
  const auto sends = leader_.on_message(2, join("b"), "10.0.0.2", start_);
  for (const auto& [to, message] : sends) EXPECT_EQ(message.plan.master.host, "10.0.0.2");
}

TEST_F(LeaderTest, WhoDoesNotBelongIsRefusedWithTheReason) {
  const auto reason = [&](const AgentMessage& message) {
    const auto sends = leader_.on_message(7, message, "10.0.0.9", start_);
    return sends.empty() || sends[0].message.kind != Kind::kRefused ? "not refused"
                                                                    : sends[0].message.text;
  };
  AgentMessage other_job = join("b"), other_count = join("b");
  other_job.run_id = "another";
  other_count.nodes = 2;
  EXPECT_THAT(reason(other_job), HasSubstr("job 'job', not to 'another'"));
  EXPECT_THAT(reason(other_count), HasSubstr("for 3 hosts, this one for 2"));
  EXPECT_THAT(reason(join("b", 1)), HasSubstr("--node-rank"));
  running();
  EXPECT_THAT(reason(join("d")), HasSubstr("has begun"));
  leader_ = Leader(options(true), start_);
  leader_.on_message(0, join("a", 0), "", start_);
  leader_.on_message(1, join("b", 1), "10.0.0.2", start_);
  EXPECT_THAT(reason(join("c", 1)), HasSubstr("node 1 has joined already, from b"));
  EXPECT_EQ(leader_.missing(), "node 2");
}

TEST_F(LeaderTest, AMemberThatLeavesTheMeetingMayComeAgain) {
  leader_.on_message(0, join("a"), "", start_);
  leader_.on_message(1, join("b"), "10.0.0.2", start_);
  EXPECT_THAT(leader_.on_lost(1, "closed", start_), IsEmpty());
  EXPECT_EQ(leader_.joined(), 1);
  leader_.on_message(2, join("b"), "10.0.0.2", start_);
  EXPECT_EQ(told(leader_.on_message(3, join("c"), "10.0.0.3", start_), Kind::kPlan).size(), 3u);
}

TEST_F(LeaderTest, WhoIsMissingAtTheDeadlineIsNamed) {
  LeaderOptions named = options(true);
  named.names = {"hostA", "hostB", "hostC"};
  leader_ = Leader(named, start_);
  leader_.on_message(0, join("a", 0), "", start_);
  leader_.on_message(1, join("c", 2), "10.0.0.3", start_);
  const auto sends = leader_.on_time(start_ + seconds(600));
  EXPECT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1));
  EXPECT_THAT(sends[0].message.text, AllOf(HasSubstr("only 2 of 3 hosts joined within 600 s"),
                                           HasSubstr("missing: hostB")));
  EXPECT_EQ(sends[0].message.exit_code, 1);
}

TEST_F(LeaderTest, TheJobIsOverWhenAllHaveEnded) {
  running();
  EXPECT_THAT(leader_.on_message(1, of(Kind::kEnded), "", start_), IsEmpty());
  EXPECT_THAT(leader_.on_message(0, of(Kind::kEnded), "", start_), IsEmpty());
  const auto sends = leader_.on_message(2, of(Kind::kEnded), "", start_);
  EXPECT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1, 2));
  EXPECT_EQ(sends[0].message.exit_code, 0);
  EXPECT_EQ(sends[0].message.text, "");
  EXPECT_TRUE(leader_.over());
}

TEST_F(LeaderTest, ServicesStopWhenOnlyTheyAreLeftOnAllHosts) {
  running();
  EXPECT_THAT(leader_.on_message(2, of(Kind::kServed), "", start_), IsEmpty());
  EXPECT_THAT(leader_.on_message(0, of(Kind::kServed), "", start_), IsEmpty());
  const auto sends = leader_.on_message(1, of(Kind::kEnded), "", start_);
  EXPECT_THAT(told(sends, Kind::kStopServices), ElementsAre(0, 2));
  EXPECT_EQ(end({0, 2}, start_).exit_code, 0);
}

TEST_F(LeaderTest, ServicesAreNotStoppedWellAfterAFailure) {
  running();
  for (const int member : {0, 2}) leader_.on_message(member, of(Kind::kServed), "", start_);
  EXPECT_THAT(told(leader_.on_message(1, failed(2, SIGKILL), "", start_), Kind::kStop),
              ElementsAre(0, 2));
  EXPECT_THAT(leader_.on_message(1, of(Kind::kEnded), "", start_), IsEmpty());
  EXPECT_EQ(end({0, 2}, start_).exit_code, 1);
}

TEST_F(LeaderTest, AFailureStopsTheOthersAndIsNamedInTheEnd) {
  running();
  EXPECT_THAT(told(leader_.on_message(1, failed(2, SIGKILL), "", start_), Kind::kStop),
              ElementsAre(0, 2));
  const AgentMessage over = end({0, 1, 2}, start_);
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.text, HasSubstr("rank 2 of 3 on c failed first: killed by SIGKILL"));
}

TEST_F(LeaderTest, ADeathBySignalIsBlamedBeforeWhatItMadeOthersDo) {
  running();
  leader_.on_message(0, failed(0, 0, 1), "", start_);
  leader_.on_message(2, failed(1, SIGABRT), "", start_ + milliseconds(20));
  leader_.on_message(1, failed(2, SIGSEGV), "", start_ + milliseconds(50));
  EXPECT_THAT(end({0, 1, 2}, start_).text, HasSubstr("rank 2 of 3 on c failed first"));
}

TEST_F(LeaderTest, ARankThatStandsStillOnAnotherHostIsTheCauseOfItsWaiters) {
  running();
  AgentMessage gave_up = failed(0, 0, 1);
  gave_up.failure->gave_up = true;
  leader_.on_message(0, gave_up, "", start_);
  AgentMessage ended = of(Kind::kEnded);
  ended.failure = gave_up.failure;
  ended.sights = {{.rank = 0, .gave_up = true}};
  leader_.on_message(0, ended, "", start_);
  ended.failure.reset();
  ended.sights = {{.rank = 1, .gave_up = true}};
  leader_.on_message(2, ended, "", start_);
  ended.sights = {{.rank = 2, .pid = 7, .stopped_by = "SIGSTOP"}};
  const auto sends = leader_.on_message(1, ended, "", start_);
  ASSERT_THAT(told(sends, Kind::kOver), ElementsAre(0, 1, 2));
  EXPECT_THAT(sends[0].message.text,
              testing::StartsWith("[lockstep] rank 2 of 3 on c is stopped (SIGSTOP), pid 7; ranks "
                                  "0, 1 gave up waiting\n"));
}

TEST_F(LeaderTest, WhoOnlyWaitedIsBlamedAfterWhoFailed) {
  running();
  AgentMessage gave_up = failed(0, 0, 1);
  gave_up.failure->gave_up = true;
  leader_.on_message(0, gave_up, "", start_);
  leader_.on_message(2, failed(1, 0, 7), "", start_ + milliseconds(20));
  EXPECT_THAT(end({0, 1, 2}, start_).text,
              HasSubstr("rank 1 of 3 on b failed first: exited with code 7"));
}

TEST_F(LeaderTest, OfEqualFailuresAndMuchLaterOnesTheFirstCounts) {
  running();
  leader_.on_message(2, failed(1, 0, 7), "", start_);
  leader_.on_message(0, failed(0, SIGABRT), "", start_ + milliseconds(20));
  leader_.on_message(1, failed(2, SIGKILL), "", start_ + seconds(5));
  EXPECT_THAT(end({0, 1, 2}, start_).text,
              HasSubstr("rank 1 of 3 on b failed first: exited with code 7"));
}

TEST_F(LeaderTest, AHostThatCannotStartItsRanksIsNamed) {
  running();
  AgentMessage message = of(Kind::kFailed);
  message.text = "cannot start './train'";
  message.exit_code = 2;
  EXPECT_THAT(told(leader_.on_message(2, message, "", start_), Kind::kStop), ElementsAre(0, 1));
  const AgentMessage over = end({0, 1, 2}, start_);
  EXPECT_EQ(over.exit_code, 2);
  EXPECT_EQ(over.text, "[lockstep] b: cannot start './train'\n");
}

TEST_F(LeaderTest, ExitCodeTwoPassesThrough) {
  running();
  leader_.on_message(2, failed(1, 0, 2), "", start_);
  EXPECT_EQ(end({0, 1, 2}, start_).exit_code, 2);
}

TEST_F(LeaderTest, AClosedConnectionIsALostAgentAndTheCause) {
  running();
  leader_.on_message(0, failed(0, 0, 1), "", start_ + milliseconds(1));
  leader_.on_lost(1, "its connection was closed", start_ + milliseconds(2));
  EXPECT_THAT(end({0, 2}, start_).text,
              HasSubstr("the agent on c (10.0.0.3, rank 2) vanished: its connection was closed"));
}

TEST_F(LeaderTest, SilenceIsALostAgentWhoseTimeIsWhenItWasLastHeard) {
  running();
  Leader::Time now = start_;
  for (int second = 1; second <= 5; ++second) {
    now = start_ + seconds(second);
    leader_.on_message(2, of(Kind::kBeat), "", now);
    EXPECT_THAT(told(leader_.on_time(now), Kind::kBeat), ElementsAre(1, 2));
  }
  // The effect of the cut on a rank here was noticed long before.
  leader_.on_message(0, failed(0, 0, 1), "", start_ + milliseconds(900));
  for (int second = 6; second <= 9; ++second) {
    now = start_ + seconds(second);
    leader_.on_message(2, of(Kind::kBeat), "", now);
    leader_.on_time(now);
  }
  EXPECT_FALSE(leader_.present(1));
  EXPECT_THAT(end({0, 2}, now).text,
              HasSubstr("the agent on c (10.0.0.3, rank 2) vanished: nothing "
                        "was heard of it for 8 s"));
}

TEST_F(LeaderTest, AnAgentThatDoesNotStopIsGivenUp) {
  running();
  leader_.on_message(0, failed(0, 0, 3), "", start_);
  leader_.on_message(0, of(Kind::kEnded), "", start_);
  leader_.on_message(2, of(Kind::kEnded), "", start_);
  Leader::Sends sends;
  for (int second = 1; second <= 20 && !leader_.over(); ++second) {
    for (const int member : {1, 2})
      leader_.on_message(member, of(Kind::kBeat), "", start_ + seconds(second));
    sends = leader_.on_time(start_ + seconds(second));
  }
  ASSERT_TRUE(leader_.over());
  EXPECT_THAT(sends.back().message.text, HasSubstr("exited with code 3"));
}

TEST_F(LeaderTest, ASignalToOneAgentGoesToAllOthersAndEndsTheJob) {
  running();
  const auto sends = leader_.on_message(2, of(Kind::kSignal, SIGTERM), "", start_);
  EXPECT_THAT(told(sends, Kind::kSignal), ElementsAre(0, 1));
  const AgentMessage over = end({0, 1, 2}, start_);
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.text, HasSubstr("the job was stopped by SIGTERM to the agent on b"));
}

TEST_F(LeaderTest, WhereAllRanksEndWellAfterSigtermTheJobHas) {
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const int badly : {-1, 1}) {
      leader_ = Leader(options(), start_);
      running();
      leader_.on_message(2, of(Kind::kSignal, signal), "", start_);
      AgentMessage over;
      for (const int member : {0, 1, 2}) {
        AgentMessage ended = of(Kind::kEnded);
        ended.well = member != badly;
        for (const auto& send : leader_.on_message(member, ended, "", start_)) over = send.message;
      }
      EXPECT_EQ(over.exit_code, signal == SIGTERM && badly < 0 ? 0 : 1);
      EXPECT_EQ(over.text.empty(), over.exit_code == 0);
    }
  }
}

TEST_F(LeaderTest, UserSignalsAreForAllIfTheFirstAgentGotThem) {
  running();
  EXPECT_THAT(told(leader_.on_message(0, of(Kind::kSignal, SIGUSR1), "", start_), Kind::kSignal),
              ElementsAre(1, 2));
  EXPECT_THAT(leader_.on_message(1, of(Kind::kSignal, SIGUSR1), "", start_), IsEmpty());
  EXPECT_EQ(end({0, 1, 2}, start_).exit_code, 0);
}

TEST(AgentMessages, SurviveTheWire) {
  AgentMessage message;
  message.kind = Kind::kEnded;
  message.generation = 4;
  message.port = 77;
  message.finished = true;
  message.well = true;
  message.lost_output = true;
  message.failure.emplace();
  message.failure->host = "b";
  message.failure->rank = 3;
  message.failure->role = "ps 1";
  message.failure->restarts = 2;
  message.failure->signal = 9;
  message.failure->last_collective = "#7 barrier";
  message.failure->tail = {"one", "\xff no UTF-8"};
  message.failure->gave_up = true;
  message.failure->late = 5;
  message.failure->waited = {3, 4};
  message.sights = {{.host = "b",
                     .rank = 5,
                     .pid = 71,
                     .stopped_by = "SIGSTOP",
                     .end = "end",
                     .ended_badly = true,
                     .last_collective = "#6 barrier",
                     .gave_up = true,
                     .late = 4}};
  message.failure->causes = message.sights;
  const AgentMessage back = decode_agent_message(encode(message));
  EXPECT_EQ(back.kind, Kind::kEnded);
  EXPECT_EQ(back.generation, 4);
  EXPECT_EQ(back.port, 77);
  EXPECT_TRUE(back.finished);
  EXPECT_TRUE(back.well);
  EXPECT_TRUE(back.lost_output);
  EXPECT_EQ(back.failure->host, "b");
  EXPECT_EQ(back.failure->rank, 3);
  EXPECT_EQ(back.failure->role, "ps 1");
  EXPECT_EQ(back.failure->restarts, 2);
  EXPECT_EQ(back.failure->signal, 9);
  EXPECT_EQ(back.failure->last_collective, "#7 barrier");
  EXPECT_EQ(back.failure->tail.size(), 2u);
  EXPECT_TRUE(back.failure->gave_up);
  EXPECT_EQ(back.failure->late, 5);
  EXPECT_THAT(back.failure->waited, ElementsAre(3, 4));
  for (const auto& sights : {back.sights, back.failure->causes}) {
    ASSERT_EQ(sights.size(), 1u);
    EXPECT_EQ(sights[0].host, "b");
    EXPECT_EQ(sights[0].rank, 5);
    EXPECT_EQ(sights[0].pid, 71);
    EXPECT_EQ(sights[0].stopped_by, "SIGSTOP");
    EXPECT_EQ(sights[0].end, "end");
    EXPECT_TRUE(sights[0].ended_badly);
    EXPECT_EQ(sights[0].last_collective, "#6 barrier");
    EXPECT_TRUE(sights[0].gave_up);
    EXPECT_EQ(sights[0].late, 4);
  }
  message = {.kind = Kind::kFailed, .stood_still = true};
  EXPECT_TRUE(decode_agent_message(encode(message)).stood_still);
  message = {.kind = Kind::kWaitInVain};
  EXPECT_EQ(decode_agent_message(encode(message)).kind, Kind::kWaitInVain);
  for (const char* nonsense :
       {"", "{}", "[]", "{\"kind\":\"what\"}", "{\"kind\":\"join\"}",
        "{\"kind\":\"plan\",\"plan\":1}", "{\"kind\":\"over\",\"text\":1}"}) {
    EXPECT_THROW(decode_agent_message(nonsense), StoreError) << nonsense;
  }
}

TEST(RemoteOrder, SurvivesTheWireWithoutWhatIsPrivateToTheLaunchingHost) {
  LaunchOptions options;
  options.command = {"./train", "--name", "it's \"x\"\n"};
  options.grace = milliseconds(1500);
  options.stop_grace = milliseconds(40'000);
  options.prefix = LinePrefix::kRankAndStream;
  options.prefix_template = "${rank}: ";
  options.spare_ranks = 2;
  options.tee = {{-1, Redirect::kBoth}};
  options.roles = {{.name = "ps", .ranks = 2, .restarts = 3, .service = true}, {.name = "trainer"}};
  options.nodes.emplace();
  options.nodes->nodes = 2;
  options.nodes->forward = {"COLOUR"};
  const RemoteOrder order = decode_remote_order(encode(
      make_order(options, {"b", 1, 4}, {{"10.0.0.1", 77}}, "/work",
                 {"LOCKSTEP_LOG=debug", "LOCKSTEP_SECRET=x", "LOCKSTEP_STORE=y",
                  "LOCKSTEP_ROLES=a=0-0", "LOCKSTEP_RESTART_COUNT=1", "LOCKSTEP_SPARE_DEVICE=0",
                  "LOCKSTEP_SPARE_FD=5", "COLOUR=blue", "HOME=/h"})));
  EXPECT_EQ(order.directory, "/work");
  EXPECT_EQ(order.env.size(), 2u);
  EXPECT_EQ(order.env.at("LOCKSTEP_LOG"), "debug");
  EXPECT_EQ(order.env.at("COLOUR"), "blue");
  EXPECT_EQ(order.options.command, options.command);
  EXPECT_EQ(order.options.nproc, 4);
  EXPECT_EQ(order.options.grace, options.grace);
  EXPECT_EQ(order.options.stop_grace, options.stop_grace);
  EXPECT_EQ(order.options.prefix, options.prefix);
  EXPECT_EQ(order.options.prefix_template, options.prefix_template);
  EXPECT_EQ(order.options.spare_ranks, options.spare_ranks);
  EXPECT_EQ(order.options.tee, options.tee);
  EXPECT_EQ(order.options.roles, options.roles);
  EXPECT_EQ(order.options.nodes->number, 1);
  EXPECT_EQ(order.options.nodes->secret.text(), options.nodes->secret.text());
  EXPECT_EQ(order.options.nodes->endpoints.front().to_string(), "10.0.0.1:77");
  EXPECT_EQ(order.options.nodes->server, NodesOptions::Server::kOther);
  for (const char* nonsense :
       {"", "{}", R"({"secret":"s"})", R"({"directory":"/","env":{},"options":{},"nodes":null})"})
    EXPECT_THROW(decode_remote_order(nonsense), InvalidArgument) << nonsense;
}

TEST(RemoteOrder, TheSshCommand) {
  EXPECT_THAT(ssh_command({"ssh", "-p", "22"}, "me@b", "/it's/lockstep"),
              ElementsAre("ssh", "-p", "22", "me@b",
                          "exec '/it'\\''s/lockstep' run --agent-of-another-host"));
  EXPECT_EQ(ssh_command({}, "b", "/x").front(), "ssh");
}

TEST(Rendezvous, WhoServesAndWhere) {
  const std::vector<InterfaceAddress> here = {
      {"lo", "127.0.0.1", true}, {"eth0", "10.0.0.5", false}, {"ib0", "10.1.0.5", false}};
  NodesOptions options;
  options.server = NodesOptions::Server::kWhoeverCan;
  const auto decide = [&](const std::string& host, const std::string& address) {
    options.endpoints = {{host, 29400}};
    return decide_rendezvous(options, host, address, here);
  };
  EXPECT_TRUE(decide("a", "10.0.0.5").may_serve);
  EXPECT_EQ(decide("a", "10.0.0.5").listen, "10.0.0.5");
  EXPECT_FALSE(decide("b", "10.0.0.6").may_serve) << "the endpoint is another host";
  EXPECT_EQ(decide("localhost", "127.0.0.1").listen, "127.0.0.1");
  EXPECT_EQ(decide("127.0.0.1", "127.0.0.1").listen, "127.0.0.1");
  EXPECT_EQ(decide("a", "127.0.1.1").listen, "0.0.0.0") << "Debian's own name";
  options.server = NodesOptions::Server::kThis;
  EXPECT_TRUE(decide("a", "203.0.113.9").must_serve);
  EXPECT_EQ(decide("a", "203.0.113.9").listen, "0.0.0.0") << "a translated address";
  options.interface = "ib0";
  EXPECT_EQ(decide("a", "10.0.0.5").listen, "10.1.0.5");
}

}  // namespace leader_test
}  // namespace lockstep::inline v0::launch
