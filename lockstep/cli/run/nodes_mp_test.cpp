// Tests `lockstep run` on several hosts, which are network namespaces that the tests make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "lockstep/cli/run/hosts_test.h"

namespace lockstep::inline v0::cli {
namespace run_nodes_mp_test {

using namespace hosts_test;  // NOLINT: a test's own helpers
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class RunNodes : public HostsTest {
 protected:
  static Words by_number(int number, const Words& rest, int nodes = 2) {
    Words words = {"--nnodes",      std::to_string(nodes),
                   "--node-rank",   std::to_string(number),
                   "--master-addr", "10.77.0.1",
                   "--master-port", "29511",
                   "--rdzv-conf",   "keep_alive_interval=0.2,keep_alive_max_attempt=15"};
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }
};

const char* const kShowRank =
    "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node "
    "$GROUP_RANK/$GROUP_WORLD_SIZE $NODE_RANK at $MASTER_ADDR $GLOO_SOCKET_IFNAME";

TEST_F(RunNodes, ByNumberTheRanksAreAsUnderTorchrun) {
  // The second host comes first, and has one rank more.
  auto second = start(1, by_number(1, {"-np", "2", "/bin/sh", "-c", kShowRank}));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  auto first = start(0, by_number(0, {"/bin/sh", "-c", kShowRank}));
  EXPECT_EQ(first->finish(), 0) << first->err;
  EXPECT_EQ(second->finish(), 0) << second->err;
  EXPECT_EQ(first->out, "0/3 local 0/1 node 0/2 0 at 10.77.0.1 eth0\n");
  EXPECT_THAT(lines_of(second->out),
              UnorderedElementsAre("1/3 local 0/2 node 1/2 1 at 10.77.0.1 eth0",
                                   "2/3 local 1/2 node 1/2 1 at 10.77.0.1 eth0"));
}

TEST_F(RunNodes, ByNumberTheRanksMeetInTheStore) {
  auto first = start(0, by_number(0, {"-np", "2", test_program(), "rank", "meet"}, 3));
  auto second = start(1, by_number(1, {"-np", "2", test_program(), "rank", "meet"}, 3));
  auto third = start(2, by_number(2, {"-np", "2", test_program(), "rank", "meet"}, 3));
  for (auto* agent : {&first, &second, &third}) EXPECT_EQ((*agent)->finish(), 0) << (*agent)->err;
  EXPECT_THAT(third->out, HasSubstr("rank 5 met 6"));
}

TEST_F(RunNodes, ByEndpointHostsAreOrderedByName) {
  const auto words = [](const std::string& endpoint) {
    return Words{"--nnodes",
                 "3",
                 "--rdzv-endpoint",
                 endpoint,
                 "--rdzv-backend",
                 "c10d",
                 "--rdzv-id",
                 "job7",
                 "/bin/sh",
                 "-c",
                 "echo $(hostname) $RANK $TORCHELASTIC_RUN_ID $MASTER_ADDR"};
  };
  // The endpoint is on the second host, which serves, in any order of arrival.
  auto third = start(2, words("10.77.0.2:29400"));
  auto first = start(0, words("10.77.0.2:29400"));
  auto second = start(1, words("10.77.0.2:29400"));
  for (auto* agent : {&first, &second, &third}) EXPECT_EQ((*agent)->finish(), 0) << (*agent)->err;
  EXPECT_EQ(first->out, "host0 0 job7 10.77.0.1\n");
  EXPECT_EQ(second->out, "host1 1 job7 10.77.0.1\n");
  EXPECT_EQ(third->out, "host2 2 job7 10.77.0.1\n");
}

TEST_F(RunNodes, ByEndpointTheFirstOnAHostServes) {
  // Two agents on one host, by a name that leads to loopback.
  const Words words = {"--nnodes", "2",   "--rdzv-endpoint", "localhost:29401", test_program(),
                       "rank",     "meet"};
  auto one = start(0, words), two = start(0, words);
  EXPECT_EQ(one->finish(), 0) << one->err;
  EXPECT_EQ(two->finish(), 0) << two->err;
}

TEST_F(RunNodes, OverSshTheRanksFollowTheHosts) {
  folder_.write("here.txt", "found\n");
  Words command = {"sh", "-c", "cd " + folder_.path().string() + " && exec \"$@\"", "sh"};
  const Words prefix = network_->prefix(0);
  command.insert(command.end(), prefix.begin(), prefix.end());
  command.insert(
      command.end(),
      {"env", "LOCKSTEP_SSH=" + ssh_, "LOCKSTEP_NOTE=noted", "COLOUR=blue", "TASTE=salt",
       lockstep_program(), "run", "-np", "3", "-x", "COLOUR", "-x", "SHAPE=round", "--tag-output",
       "-H", "10.77.0.2:2,localhost:4", "/bin/sh", "-c",
       "echo $(hostname) $LOCKSTEP_NOTE $COLOUR $TASTE $SHAPE $(cat here.txt); [ $RANK = "
       "2 ] || echo $RANK >&2"});
  Running agent(command);
  EXPECT_EQ(agent.finish(), 0) << agent.err;
  EXPECT_THAT(lines_of(agent.out),
              UnorderedElementsAre("[0]<stdout>: host1 noted blue round found",
                                   "[1]<stdout>: host1 noted blue round found",
                                   "[2]<stdout>: host0 noted blue salt round found"));
  EXPECT_THAT(lines_of(agent.err), UnorderedElementsAre("[0]<stderr>: 0", "[1]<stderr>: 1"));
}

TEST_F(RunNodes, OverSshRolesFollowTheHostsAndARankIsStartedAgainOnItsOwn) {
  auto agent =
      start(0, {"-H", "localhost:2,10.77.0.2:2", "--role", "trainer=3", "--role", "ps=1,restarts=1",
                "/bin/sh", "-c",
                "[ $ROLE_NAME$LOCKSTEP_RESTART_COUNT = ps0 ] && kill -9 $$; echo $(hostname) "
                "$RANK $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE $LOCKSTEP_ROLES"});
  EXPECT_EQ(agent->finish(), 0) << agent->err;
  EXPECT_THAT(lines_of(agent->out), UnorderedElementsAre("host0 0 trainer 0/3 trainer=0-2,ps=3-3",
                                                         "host0 1 trainer 1/3 trainer=0-2,ps=3-3",
                                                         "host1 2 trainer 2/3 trainer=0-2,ps=3-3",
                                                         "host1 3 ps 0/1 trainer=0-2,ps=3-3"));
  EXPECT_THAT(agent->err, HasSubstr("rank 3 (ps 0) killed by SIGKILL"));
}

TEST_F(RunNodes, OverSshServicesEndAfterTheRanksOfAllHosts) {
  const std::string ready = folder_.path().string() + "/ready";
  auto agent =
      start(0, {"-H", "localhost:2,10.77.0.2:2", "--role", "ps=2,service", "--role", "trainer=2",
                "/bin/sh", "-c",
                "[ $ROLE_NAME = trainer ] && { until [ -e " + ready + "0 -a -e " + ready +
                    "1 ]; do sleep 0.01; done; exit 0; }; trap 'echo bye; exit 9' TERM; touch " +
                    ready + "$RANK; while :; do sleep 0.01; done"});
  EXPECT_EQ(agent->finish(), 0) << agent->err;
  EXPECT_EQ(agent->out, "bye\nbye\n");
}

TEST_F(RunNodes, OverSshTheSecretIsOnNoCommandLineAndInNoEnvironment) {
  auto agent = start(0, {"-H", "10.77.0.1:1,10.77.0.2:1", test_program(), "rank", "wait"}, false);
  agent->await_output("of rank", 2);
  int seen = 0;
  for (const int host : {0, 1}) {
    for (const pid_t pid : network_->processes(host)) {
      std::string text;
      for (const char* file : {"cmdline", "environ"}) {
        std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file);
        text += std::string(std::istreambuf_iterator<char>(stream), {});
      }
      EXPECT_THAT(text, Not(HasSubstr("LOCKSTEP_SECRET=")));
      EXPECT_THAT(text, Not(HasSubstr("\"secret\"")));
      ++seen;
    }
  }
  EXPECT_GE(seen, 4) << "two agents and two ranks";
  ::kill(agent->process().pid(), SIGTERM);
  EXPECT_EQ(agent->finish(), 128 + SIGTERM);
}

TEST_F(RunNodes, SigtermToOneAgentLetsTheRanksOfAllHostsSaveAndAllAgentsEndWell) {
  const Words rank = {
      "/bin/sh", "-c",
      "trap 'sleep 1; echo saved $RANK; exit 0' TERM; echo ready $RANK; while :; do "
      "sleep 0.01; done"};
  for (const int told : {0, 1}) {
    Words words = by_number(0, rank);
    words.insert(words.begin(), {"--grace", "0.1"});
    auto first = start(0, words);
    words = by_number(1, rank);
    words.insert(words.begin(), {"--grace", "0.1"});
    auto second = start(1, words);
    first->await_output("ready 0");
    second->await_output("ready 1");
    ::kill((told == 0 ? first : second)->process().pid(), SIGTERM);
    EXPECT_EQ(first->finish(), 0) << first->err;
    EXPECT_EQ(second->finish(), 0) << second->err;
    EXPECT_THAT(first->out, HasSubstr("saved 0\n"));
    EXPECT_THAT(second->out, HasSubstr("saved 1\n"));
    EXPECT_THAT(first->err + second->err, Not(HasSubstr("lockstep"))) << "nothing failed";
  }
}

TEST_F(RunNodes, OverSshAHostThatCannotBeReachedIsNamed) {
  auto agent = start(0, {"-H", "localhost:1,nowhere:1", "/bin/true"});
  EXPECT_EQ(agent->finish(), 1) << "it may be up again soon";
  EXPECT_THAT(agent->err, AllOf(HasSubstr("ssh: Could not resolve hostname nowhere"),
                                HasSubstr("nowhere: ssh exited with code 255 before")));
}

// It fails at once, and not after the ten minutes for which hosts are awaited.
TEST_F(RunNodes, AFirstAgentThatCanNeverBeReachedIsOneLineAtOnce) {
  Words words = by_number(1, {"/bin/true"});
  words[5] = "fe80::1";  // without an interface behind it
  auto agent = start(0, words);
  EXPECT_EQ(agent->finish(), 1);
  EXPECT_THAT(agent->err, HasSubstr("cannot connect to [fe80::1]:29511"));
  words[5] = "127.0.0.1";
  Words isolated = {"unshare",          "-n", "env", std::string("LOCKSTEP_SECRET=") + kSecret,
                    lockstep_program(), "run"};
  isolated.insert(isolated.end(), words.begin(), words.end());
  Running without_loopback(isolated);
  EXPECT_EQ(without_loopback.finish(), 1);
  EXPECT_THAT(without_loopback.err, HasSubstr("127.0.0.1 cannot be reached (Network is "
                                              "unreachable); is the interface lo up?"));
  for (const std::string& said : {agent->err, without_loopback.err})
    EXPECT_EQ(lines_of(said).size(), 1u) << said;
}

TEST_F(RunNodes, WhoIsMissingIsNamed) {
  Words words = by_number(0, {"/bin/true"}, 3);
  words.insert(words.begin(), {"--rdzv-conf", "join_timeout=1"});
  words.erase(words.begin() + 10, words.begin() + 12);  // the other --rdzv-conf
  auto first = start(0, words);
  words[5] = "1";
  auto second = start(1, words);
  EXPECT_EQ(first->finish(), 1) << "no mistake: they may come the next time";
  EXPECT_THAT(first->err, HasSubstr("only 2 of 3 hosts joined within 1 s; missing: node 2"));
  EXPECT_EQ(second->finish(), 1);
  EXPECT_THAT(second->err, HasSubstr("missing: node 2"));
}

TEST_F(RunNodes, AnotherSecretIsRefused) {
  auto first = start(0, by_number(0, {"/bin/true"}));
  Words command = network_->prefix(1);
  command.insert(command.end(), {"env", "LOCKSTEP_SECRET=another", lockstep_program(), "run"});
  const Words words = by_number(1, {"/bin/true"});
  command.insert(command.end(), words.begin(), words.end());
  Running stranger(command);
  EXPECT_NE(stranger.finish(), 0);
  EXPECT_THAT(stranger.err, HasSubstr("secret"));
  auto second = start(1, by_number(1, {"/bin/true"}));
  EXPECT_EQ(second->finish(), 0) << "the job goes on";
  EXPECT_EQ(first->finish(), 0) << first->err;
}

TEST_F(RunNodes, AHostWithoutTheProgramIsNamed) {
  // It is noticed before the agent joins, and when it would start.
  auto first = start(0, by_number(0, {test_program(), "rank", "wait"}));
  auto second = start(1, by_number(1, {"./no-such-program"}));
  EXPECT_EQ(second->finish(), 2);
  ::kill(first->process().pid(), SIGTERM);
  EXPECT_EQ(first->finish(), 128 + SIGTERM) << "nothing was started";
  EXPECT_EQ(first->out, "");
  const std::string script = folder_.write("odd", "no program\n");
  ::chmod(script.c_str(), 0700);
  auto third = start(0, by_number(0, {test_program(), "rank", "wait"}));
  auto fourth = start(1, by_number(1, {script}));
  EXPECT_EQ(fourth->finish(), 2);
  EXPECT_EQ(third->finish(), 2);
  EXPECT_THAT(third->err, HasSubstr("host1: cannot start '" + script + "'"));
}

// Every cause ends the job on all hosts within seconds, and is named.

constexpr auto kSoon = std::chrono::seconds(10);

TEST_F(RunNodes, AKilledRankEndsTheJobOnAllHostsAndIsNamed) {
  auto first = start(0, by_number(0, {"-np", "2", test_program(), "rank", "die3"}));
  auto second = start(1, by_number(1, {"-np", "2", test_program(), "rank", "die3"}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(first->finish(), 1);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  for (const auto* agent : {&first, &second}) {
    EXPECT_THAT((*agent)->err,
                AllOf(HasSubstr("rank 3 of 4 on host1 failed first: killed by SIGKILL"),
                      HasSubstr("last collective: #7 all_reduce sum float32 x 10 at train.cpp:3"),
                      HasSubstr("    rank 3 goes\n")));
  }
}

TEST_F(RunNodes, OverSshAKilledRankIsNamedByTheFirstAgent) {
  auto agent = start(0, {"-H", "localhost:1,10.77.0.2:1,hostB:1", test_program(), "rank", "die2"});
  EXPECT_EQ(agent->finish(), 1);
  EXPECT_THAT(agent->err, HasSubstr("rank 2 of 3 on hostB failed first: killed by SIGKILL"));
  EXPECT_EQ(agent->err.find("failed first"), agent->err.rfind("failed first")) << agent->err;
}

TEST_F(RunNodes, AKilledAgentIsNamedAndTheOthersEnd) {
  auto first = start(0, by_number(0, {test_program(), "rank", "wait"}));
  auto second = start(1, by_number(1, {test_program(), "rank", "wait"}));
  first->await_output("of rank");
  second->await_output("of rank");
  ::kill(agent_on(*network_, 1), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(first->finish(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_THAT(first->err, HasSubstr("the agent on host1 (10.77.0.2, rank 1) vanished"));
}

TEST_F(RunNodes, TheFirstAgentsDeathEndsTheOthers) {
  auto first = start(0, by_number(0, {test_program(), "rank", "wait"}));
  auto second = start(1, by_number(1, {test_program(), "rank", "wait"}));
  first->await_output("of rank");
  second->await_output("of rank");
  ::kill(agent_on(*network_, 0), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(second->finish(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_THAT(second->err, HasSubstr("the first agent of the job, at 10.77.0.1:29511, vanished"));
}

TEST_F(RunNodes, OverSshTheFirstAgentsDeathEndsAll) {
  auto agent = start(0, {"-H", "10.77.0.2:2,10.77.0.3:2", test_program(), "rank", "wait"});
  agent->await_output("of rank", 4);
  const auto pids = pids_in(agent->out);
  ::kill(agent_on(*network_, 0), SIGKILL);
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid));
}

TEST_F(RunNodes, OverSshAKilledRemoteAgentIsNamed) {
  auto agent = start(0, {"-H", "localhost:1,10.77.0.2:2", test_program(), "rank", "wait"});
  agent->await_output("of rank", 3);
  ::kill(agent_on(*network_, 1), SIGKILL);
  EXPECT_EQ(agent->finish(), 1);
  EXPECT_THAT(agent->err, HasSubstr("the agent on 10.77.0.2 (10.77.0.2, ranks 1 to 2) vanished"));
}

TEST_F(RunNodes, ACutLinkIsNoticedOnBothSides) {
  auto first = start(0, by_number(0, {test_program(), "rank", "wait"}));
  auto second = start(1, by_number(1, {test_program(), "rank", "wait"}));
  first->await_output("of rank");
  second->await_output("of rank");
  network_->cut(1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(first->finish(), 1);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_THAT(first->err, HasSubstr("the agent on host1 (10.77.0.2, rank 1) vanished: nothing was "
                                    "heard of it for 3 s"));
  EXPECT_THAT(second->err, HasSubstr("vanished: nothing was heard of it for 3 s"));
}

TEST_F(RunNodes, AnInterruptOfTheFirstAgentReachesAllRanks) {
  const std::string script =
      "trap 'echo got it; exit 0' INT; echo ready; while :; do sleep 0.01; done";
  auto agent = start(0, {"-H", "localhost:1,10.77.0.2:1", "/bin/sh", "-c", script});
  agent->await_output("ready", 2);
  ::kill(agent->process().pid(), SIGINT);
  EXPECT_EQ(agent->finish(), 128 + SIGINT);
  EXPECT_THAT(lines_of(agent->out), ::testing::Contains("got it").Times(2));
}

TEST_F(RunNodes, ACppProgramDoesAsOnOneHost) {
  const std::string program =
      (std::filesystem::path(lockstep_program()).parent_path() / "examples" / "matrix").string();
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "the examples are not built";
  const Ended alone = lockstep({"run", "-np", "4", program});
  ASSERT_EQ(alone.code, 0) << alone.err;
  auto first = start(0, by_number(0, {"-np", "2", program}));
  auto second = start(1, by_number(1, {"-np", "2", program}));
  EXPECT_EQ(first->finish(), 0) << first->err;
  EXPECT_EQ(second->finish(), 0) << second->err;
  EXPECT_EQ(first->out, alone.out);
}

TEST_F(RunNodes, APyTorchScriptRuns) {
  const std::string python = torch_python(LOCKSTEP_SOURCE_DIR);
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const std::string script = folder_.write("script.py",
                                           "import torch, torch.distributed as dist\n"
                                           "dist.init_process_group('gloo')\n"
                                           "t = torch.ones(3) * (dist.get_rank() + 1)\n"
                                           "dist.all_reduce(t)\n"
                                           "print(dist.get_rank(), t.tolist())\n"
                                           "dist.destroy_process_group()\n");
  ::setenv("PYTHON_EXEC", python.c_str(), 1);
  auto first = start(0, by_number(0, {script}));
  auto second = start(1, by_number(1, {script}));
  ::unsetenv("PYTHON_EXEC");
  EXPECT_EQ(first->finish(), 0) << first->err;
  EXPECT_EQ(second->finish(), 0) << second->err;
  EXPECT_EQ(first->out, "0 [3.0, 3.0, 3.0]\n");
  EXPECT_EQ(second->out, "1 [3.0, 3.0, 3.0]\n");
}

}  // namespace run_nodes_mp_test
}  // namespace lockstep::inline v0::cli
