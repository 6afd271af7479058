// Tests `lockstep run` on hosts that come and go. They are network namespaces that the tests make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "lockstep/cli/run/hosts_test.h"

namespace lockstep::inline v0::cli {
namespace run_elastic_mp_test {

using namespace hosts_test;  // NOLINT: a test's own helpers
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kSoon = std::chrono::seconds(15);

class RunElastic : public HostsTest {
 protected:
  RunElastic() : HostsTest(4) {}

  static Words by_endpoint(const std::string& nodes, const Words& rest,
                           const std::string& conf = "") {
    Words words = {"--nnodes",
                   nodes,
                   "--rdzv-endpoint",
                   "10.77.0.1:29400",
                   "--rdzv-id",
                   "job8",
                   "--rdzv-conf",
                   "keep_alive_interval=0.2,keep_alive_max_attempt=10,last_call_timeout=1,"
                   "join_timeout=60" +
                       conf};
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }
  // A rank that prints its place, and runs until the test ends it.
  Words rank_until_done(Words flags) {
    flags.insert(flags.end(), {"/bin/sh", "-c",
                               "echo generation $LOCKSTEP_GENERATION has $WORLD_SIZE, restarts "
                               "$TORCHELASTIC_RESTART_COUNT, pid $$" +
                                   and_wait_until_done()});
    return flags;
  }
  static std::string begun(int generation, int ranks, int restarts = 0) {
    return "generation " + std::to_string(generation) + " has " + std::to_string(ranks) +
           ", restarts " + std::to_string(restarts) + ",";
  }
};

TEST_F(RunElastic, AfterAKilledRankAllStartAnewWithAFreshStore) {
  const std::string script = test_program() +
                             " rank meet || exit 9; echo generation $LOCKSTEP_GENERATION attempt "
                             "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ "
                             "$LOCKSTEP_GENERATION$RANK = 01 ] && kill -9 $$; [ "
                             "$LOCKSTEP_GENERATION = 1 ] || sleep 60";
  const Words words = by_endpoint("2", {"--max-restarts", "2", "/bin/sh", "-c", script});
  auto first = start(0, words);
  auto second = start(1, words);
  EXPECT_EQ(first->finish(), 0) << first->err;
  EXPECT_EQ(second->finish(), 0) << second->err;
  for (auto* agent : {&first, &second})
    EXPECT_THAT((*agent)->out, HasSubstr("generation 1 attempt 1 of 2"));
  EXPECT_THAT(first->err,
              HasSubstr("[lockstep] restart 1 of 2: rank 1 on host1 killed by SIGKILL"));
  EXPECT_THAT(first->err, Not(HasSubstr("->"))) << "on the same hosts";
  EXPECT_EQ(second->err, "") << "one agent tells";
}

TEST_F(RunElastic, WhenTheRestartsAreUsedUpOrTheInputIsWrongTheJobEnds) {
  const Words failing = by_endpoint(
      "2", {"--max-restarts", "1", "/bin/sh", "-c", "[ $RANK = 0 ] && exit 3; sleep 60"});
  auto first = start(0, failing);
  auto second = start(1, failing);
  EXPECT_EQ(first->finish(), 1);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_THAT(first->err, AllOf(HasSubstr("restart 1 of 1: rank 0 on host0 exited with code 3"),
                                HasSubstr("rank 0 of 2 on host0 failed first")));
  const Words wrong = by_endpoint("2", {"--max-restarts", "3", "/bin/sh", "-c",
                                        "[ $RANK = 0 ] && echo bad >&2 && exit 2; sleep 60"});
  first = start(0, wrong);
  second = start(1, wrong);
  EXPECT_EQ(first->finish(), 2);
  EXPECT_EQ(second->finish(), 2);
  EXPECT_THAT(first->err, Not(HasSubstr("restart")));
}

TEST_F(RunElastic, EnoughHostsBeginAndLaterOnesAreTakenIn) {
  const Words words = rank_until_done(by_endpoint("2:4", {"--on-failure", "restart"}));
  auto first = start(0, words);
  auto second = start(1, words);
  first->await_output(begun(0, 2));
  auto third = start(2, words);
  third->await_output(begun(1, 3));
  auto fourth = start(3, words);
  fourth->await_output(begun(2, 4));
  first->await_output(begun(2, 4));
  let_them_be_done({first.get(), second.get(), third.get(), fourth.get()});
  EXPECT_THAT(first->err,
              AllOf(HasSubstr("restart, not counted: host2 joined; 2 hosts -> 3, 2 ranks -> 3\n"),
                    HasSubstr("restart, not counted: host3 joined; 3 hosts -> 4, 3 ranks -> 4\n")));
  EXPECT_THAT(third->err, HasSubstr("the job runs on 2 hosts, and may have 4; this one waits"));
}

// A training knows by it that it continues, for every cause of the generation (train/run_folder.h).
TEST_F(RunElastic, AJobWithoutANameHasOneInAllItsGenerations) {
  const auto on = [this](int host) {
    return start(host, {"--nnodes", "1:2", "--max-restarts", "5", "--rdzv-endpoint",
                        "10.77.0.1:29400", "--rdzv-conf", "last_call_timeout=1", "/bin/sh", "-c",
                        "echo generation $LOCKSTEP_GENERATION is of $TORCHELASTIC_RUN_ID." +
                            and_wait_until_done()});
  };
  const auto name_in = [](Running& agent, const std::string& generation) {
    const std::string before = "generation " + generation + " is of ";
    agent.await_output(before);
    const size_t at = agent.out.find(before) + before.size();
    return agent.out.substr(at, agent.out.find('.', at) - at);
  };
  auto first = on(0), second = on(1);
  const std::string name = name_in(*first, "0");
  EXPECT_NE(name, "none");
  EXPECT_EQ(name.size(), 16u) << name;
  ::kill(agent_on(*network_, 1), SIGKILL);
  second->finish();
  EXPECT_EQ(name_in(*first, "1"), name) << "a host is gone";
  auto third = on(2);
  EXPECT_EQ(name_in(*first, "2"), name) << "another one came";
  EXPECT_EQ(name_in(*third, "2"), name);
  let_them_be_done({first.get(), third.get()});
}

TEST_F(RunElastic, AHostMayBeKilledAndComeBack) {
  const Words words = rank_until_done(by_endpoint("2:3", {"--on-failure", "restart"}));
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  third->await_output(begun(0, 3));
  const auto pids = pids_in(third->out);
  ::kill(agent_on(*network_, 2), SIGKILL);
  EXPECT_NE(third->finish(), 0);
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid));
  first->await_output(begun(1, 2));
  third = start(2, words);
  first->await_output(begun(2, 3));
  let_them_be_done({first.get(), second.get(), third.get()});
  EXPECT_THAT(first->err, AllOf(HasSubstr("restart, not counted: the agent on host2 (10.77.0.3, "
                                          "rank 2) vanished"),
                                HasSubstr("; 3 hosts -> 2, 3 ranks -> 2\n")));
}

TEST_F(RunElastic, AHostWhoseLinkWasCutJoinsAgainWhenItIsMended) {
  const Words words = rank_until_done(by_endpoint("2:3", {"--on-failure", "restart"}));
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  third->await_output(begun(0, 3));
  const auto pids = pids_in(third->out);
  network_->cut(2);
  first->await_output(begun(1, 2));
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid)) << "its ranks do not run alone";
  network_->mend(2);
  third->await_output(begun(2, 3));
  let_them_be_done({first.get(), second.get(), third.get()});
  EXPECT_THAT(first->err, HasSubstr("vanished: nothing was heard of it for 2 s; 3 hosts -> 2"));
}

// On its host only the sentinel can end them.
TEST_F(RunElastic, RanksOfAStoppedAgentHaveEndedWhenTheNextGenerationBegins) {
  Words words = rank_until_done(
      by_endpoint("1:2", {"--on-failure", "restart", "--grace", "1", "--stop-grace", "1"}));
  words.back() = "trap '' TERM; " + words.back();
  auto first = start(0, words);
  auto second = start(1, words);
  first->await_output(begun(0, 2));
  second->await_output(begun(0, 2));
  const pid_t sleeper = agent_on(*network_, 1);
  ::kill(sleeper, SIGSTOP);
  first->await_output(begun(1, 1));
  for (const int pid : pids_in(second->out)) EXPECT_FALSE(alive(pid)) << pid;
  ::kill(sleeper, SIGCONT);
  second->await_output(begun(2, 2));
  let_them_be_done({first.get(), second.get()});
  EXPECT_THAT(second->err,
              HasSubstr("[lockstep] the agent stood still (SIGSTOP, or its host slept) for longer "
                        "than the 2 s after which those of other hosts go on without it, so its "
                        "ranks were ended\n"));
}

TEST_F(RunElastic, AHostThatGetsSigtermLeavesAndTheOthersGoOn) {
  const Words words = rank_until_done(by_endpoint("1:3", {"--max-restarts", "1"}));
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  third->await_output(begun(0, 3));
  ::kill(third->process().pid(), SIGTERM);
  EXPECT_EQ(third->finish(), 128 + SIGTERM);
  first->await_output(begun(1, 2));
  let_them_be_done({first.get(), second.get()});
  EXPECT_THAT(first->err, HasSubstr("restart, not counted: host2 left the job: SIGTERM; 3 hosts"));
}

TEST_F(RunElastic, WhenTooFewHostsAreLeftTheJobWaitsAndThenEnds) {
  const Words words =
      rank_until_done(by_endpoint("2:3", {"--on-failure", "restart"}, ",join_timeout=2"));
  auto first = start(0, words);
  auto second = start(1, words);
  first->await_output(begun(0, 2));
  second->await_output(begun(0, 2));
  ::kill(agent_on(*network_, 1), SIGKILL);
  EXPECT_EQ(first->finish(), 1);
  EXPECT_THAT(first->err,
              AllOf(HasSubstr("the agent on host1 (10.77.0.2, rank 1) vanished"),
                    HasSubstr("; 1 host is left of at least 2 needed, and 1 more host did not come "
                              "within 2 s")));
}

TEST_F(RunElastic, WithoutItsFirstAgentTheJobEndsWithALine) {
  const Words words = rank_until_done(by_endpoint("1:3", {"--on-failure", "restart"}));
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  second->await_output(begun(0, 3));
  third->await_output(begun(0, 3));
  const auto pids = pids_in(second->out);
  ::kill(agent_on(*network_, 0), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(second->finish(), 1);
  EXPECT_EQ(third->finish(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid));
  EXPECT_THAT(second->err, HasSubstr("the first agent of the job, at 10.77.0.1:29400, vanished"));
}

TEST_F(RunElastic, AfterAllAgentsWereKilledTheJobCanBeStartedAnew) {
  const Words words = rank_until_done(by_endpoint("2:3", {"--on-failure", "restart"}));
  for (int round = 0; round < 2; ++round) {
    auto first = start(0, words);
    auto second = start(1, words);
    first->await_output(begun(0, 2));
    second->await_output(begun(0, 2));
    if (round == 0) {
      const pid_t pids[] = {agent_on(*network_, 0), agent_on(*network_, 1)};
      for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    } else {
      let_them_be_done({});
    }
    EXPECT_EQ(first->finish() == 0, round == 1) << first->err;
    EXPECT_EQ(second->finish() == 0, round == 1) << second->err;
  }
}

TEST_F(RunElastic, AHostThatIsNotNeededWaitsAndEndsWithTheJob) {
  const Words words = rank_until_done(by_endpoint("1:2", {"--max-restarts", "1"}));
  auto first = start(0, words);
  auto second = start(1, words);
  first->await_output(begun(0, 2));
  auto third = start(2, words);
  const auto said = [&] { return third->err.find("this one waits") != std::string::npos; };
  const Deadline deadline = Deadline::seconds(20);
  while (!said() && !deadline.expired()) third->read_some();
  EXPECT_TRUE(said()) << third->err;
  let_them_be_done({first.get(), second.get(), third.get()});
  EXPECT_EQ(third->out, "");
}

TEST_F(RunElastic, AnotherJobAtTheSameEndpointIsRefused) {
  const Words words = rank_until_done(by_endpoint("1:2", {}));
  auto first = start(0, words);
  first->await_output(begun(0, 1));
  // The hosts agree in the id, but not in their number; then they have another id.
  auto second = start(1, words);
  EXPECT_EQ(second->finish(), 2);
  EXPECT_THAT(second->err, HasSubstr("this agent cannot join: the job 'job8' has begun, and takes "
                                     "no hosts in later; --on-failure restart"));
  second = start(1, rank_until_done(by_endpoint("2", {})));
  EXPECT_EQ(second->finish(), 2);
  EXPECT_THAT(second->err, HasSubstr("started for 1 to 2 hosts, this one for 2 hosts (--nnodes)"));
  Words other = words;
  other[5] = "job9";
  second = start(1, other);
  EXPECT_EQ(second->finish(), 2);
  EXPECT_THAT(second->err, HasSubstr("belong to job 'job8', not to 'job9' (--rdzv-id)"));
  let_them_be_done({first.get()});
}

TEST_F(RunElastic, AStandbyTakesOverFromTheFirstAgent) {
  Words words = rank_until_done(by_endpoint("1:3", {"--on-failure", "restart"}));
  words[3] = "10.77.0.1:29400,10.77.0.2:29400";
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  second->await_output(begun(0, 3));
  third->await_output(begun(0, 3));
  ::kill(agent_on(*network_, 0), SIGKILL);
  EXPECT_NE(first->finish(), 0);
  second->await_output(begun(1, 2));
  third->await_output(begun(1, 2));
  first = start(0, words);
  first->await_output(begun(2, 3));
  let_them_be_done({first.get(), second.get(), third.get()});
  EXPECT_THAT(
      second->err,
      AllOf(HasSubstr("restart, not counted: the agent that led vanished: its connection was "
                      "closed; 3 hosts -> 2, 3 ranks -> 2\n"),
            HasSubstr("restart, not counted: host0 joined; 2 hosts -> 3")));
}

TEST_F(RunElastic, AFirstAgentThatWasCutOffJoinsItsStandby) {
  Words words = rank_until_done(by_endpoint("1:3", {"--on-failure", "restart"}));
  words[3] = "10.77.0.1:29400,10.77.0.2:29400";
  auto first = start(0, words);
  auto second = start(1, words);
  auto third = start(2, words);
  first->await_output(begun(0, 3));
  second->await_output(begun(0, 3));
  third->await_output(begun(0, 3));
  const auto pids = pids_in(first->out);
  network_->cut(0);
  second->await_output(begun(1, 2));
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid)) << "one host of three goes on";
  first->read_some();
  EXPECT_THAT(first->out, Not(HasSubstr("generation 1")));
  network_->mend(0);
  first->await_output(begun(2, 3));
  let_them_be_done({first.get(), second.get(), third.get()});
}

TEST_F(RunElastic, AStandbyWithoutMoreThanHalfOfTheOthersDoesNotGoOn) {
  Words words = rank_until_done(by_endpoint("1:3", {"--on-failure", "restart"}, ",join_timeout=6"));
  words[3] = "10.77.0.1:29400,10.77.0.2:29400";
  auto first = start(0, words);
  auto second = start(1, words);
  second->await_output(begun(0, 2));
  ::kill(agent_on(*network_, 0), SIGKILL);
  EXPECT_NE(second->finish(), 0);
  EXPECT_THAT(second->err,
              HasSubstr("1 of the 2 agents of generation 0 are here, and more than half "
                        "are needed for the next one"));
}

TEST_F(RunElastic, OverSshAllStartAnewAndALostHostEndsTheJob) {
  const std::string script =
      "echo generation $LOCKSTEP_GENERATION rank $RANK pid $$; [ $LOCKSTEP_GENERATION$RANK = 02 ] "
      "&& kill -9 $$; sleep 60";
  auto agent = start(
      0, {"-H", "localhost:1,10.77.0.2:1,hostB:1", "--max-restarts", "2", "/bin/sh", "-c", script});
  agent->await_output("generation 1", 3);
  ::kill(agent_on(*network_, 1), SIGKILL);
  EXPECT_EQ(agent->finish(), 1);
  EXPECT_THAT(agent->err, AllOf(HasSubstr("restart 1 of 2: rank 2 on hostB killed by SIGKILL"),
                                HasSubstr("and its agent does not come back")));
}

}  // namespace run_elastic_mp_test
}  // namespace lockstep::inline v0::cli
