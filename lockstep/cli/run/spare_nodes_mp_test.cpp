// Tests `lockstep run --spare-nodes` on hosts that are network namespaces: the place of a host that
// is lost goes to another one, the ranks of the others keep their processes, and the numbers are
// those of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/cli/run/hosts_test.h"

namespace lockstep::inline v0::cli {
namespace run_spare_nodes_mp_test {

using namespace hosts_test;  // NOLINT: a test's own helpers
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunWithSpareNodes : public HostsTest {
 protected:
  std::unique_ptr<Running> start_spared(int host, const Words& rest) {
    Words words = {"--nnodes",        "2",
                   "--spare-nodes",   "1",
                   "--rdzv-endpoint", "10.77.0.1:29521",
                   "--on-failure",    "replace",
                   "--max-restarts",  "9",
                   "--rdzv-conf",     "keep_alive_interval=0.25,keep_alive_max_attempt=8",
                   "--grace",         "1"};
    words.insert(words.end(), rest.begin(), rest.end());
    return start(host, words);
  }
  Words rank_until_done() const {
    return {"-np", "2", "/bin/sh", "-c",
            "echo rank $RANK life $LOCKSTEP_RESTART_COUNT on $(hostname)" + and_wait_until_done()};
  }
  // Hosts 0 and 1, whose ranks have started.
  std::pair<std::unique_ptr<Running>, std::unique_ptr<Running>> start_two_hosts() {
    auto first = start_spared(0, rank_until_done());
    auto second = start_spared(1, rank_until_done());
    first->await_output("rank 1 life 0 on host0");
    second->await_output("rank 3 life 0 on host1");
    return {std::move(first), std::move(second)};
  }
  // On two hosts of two ranks each.
  std::unique_ptr<Running> start_training(int host, const std::string& strategy,
                                          const std::string& output) {
    Words words = {"-np", "2"};
    const Words train = train_lm(strategy, output, {"--max-steps", "60", "--log-every", "2"});
    words.insert(words.end(), train.begin(), train.end());
    return start_spared(host, words);
  }
  // Waits until a run has logged so many lines.
  void await_lines(const std::string& output, int lines) const {
    const Deadline deadline = Deadline::seconds(90);
    while (lines_logged(output) < lines && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(deadline.expired()) << output;
  }
};

TEST_F(RunWithSpareNodes, WholeAndDividedStatesGoOnInTheSameBitsWithoutTheHost) {
  for (const auto& [strategy, signals] :
       {std::pair<std::string, std::vector<int>>{"ddp", {SIGKILL}}, {"fsdp", {SIGKILL, SIGTERM}}}) {
    auto first = start_training(0, strategy, strategy);
    auto second = start_training(1, strategy, strategy);
    EXPECT_EQ(first->finish(), 0) << first->out << first->err;
    EXPECT_EQ(second->finish(), 0) << second->out << second->err;

    for (const int signal : signals) {
      const std::string disturbed = strategy + std::to_string(signal);
      first = start_training(0, strategy, disturbed);
      second = start_training(1, strategy, disturbed);
      await_lines(disturbed, 1);
      auto spare = start_training(2, strategy, disturbed);
      await_lines(disturbed, 3);
      first->await_error("host2 is a spare");
      ::kill(agent_on(*network_, 1), signal);
      EXPECT_NE(second->finish(), 0);
      EXPECT_EQ(first->finish(), 0) << first->out << first->err;
      EXPECT_EQ(spare->finish(), 0) << spare->out << spare->err;
      EXPECT_THAT(first->err,
                  AllOf(HasSubstr("the agent on host1 (10.77.0.2, ranks 2 to 3) " +
                                  std::string(signal == SIGKILL ? "vanished" : "left the job")),
                        HasSubstr("; ranks 2 to 3 are started on host2"),
                        HasSubstr("rank 2, 3 were replaced")));
      EXPECT_THAT(spare->err, HasSubstr("the job runs on 2 hosts; this one is a spare, and takes "
                                        "the place of one that is lost"));
      expect_same_checkpoint(strategy, disturbed);
    }
  }
}

TEST_F(RunWithSpareNodes, AHostThatIsToldToStopGivesItsPlaceToASpareOrStopsAll) {
  auto [first, second] = start_two_hosts();
  auto third = start_spared(2, rank_until_done());
  first->await_error("host2 is a spare");
  ::kill(agent_on(*network_, 1), SIGTERM);
  EXPECT_EQ(second->finish(), 128 + SIGTERM);
  EXPECT_THAT(second->err, HasSubstr("SIGTERM: another host takes this one's place"));
  third->await_output("rank 3 life 1 on host2");
  first->await_error("left the job: SIGTERM; ranks 2 to 3 are started on host2");
  EXPECT_THAT(first->err + first->out, Not(HasSubstr("life 1"))) << "its ranks go on";
  // No spare is left.
  ::kill(agent_on(*network_, 2), SIGTERM);
  EXPECT_NE(third->finish(), 0);
  EXPECT_NE(first->finish(), 0);
  EXPECT_THAT(first->err, HasSubstr("the job was stopped by SIGTERM to the agent on host2"));
}

// The lost host's ranks may run on, until its agent has noticed that nobody hears it.
TEST_F(RunWithSpareNodes, AHostThatIsCutOffLosesItsPlaceAndComesBackAsASpare) {
  auto [first, second] = start_two_hosts();
  auto third = start_spared(2, rank_until_done());
  network_->cut(1);
  third->await_output("rank 3 life 1 on host2");
  EXPECT_THAT(first->err + first->out, Not(HasSubstr("life 1"))) << "its ranks go on";
  // All of its ranks are gone; its agent looks for the others.
  EXPECT_EQ(network_->processes(1).size(), 1u) << "its agent";
  network_->mend(1);
  second->await_error("this one is a spare");
  ::kill(agent_on(*network_, 2), SIGKILL);
  EXPECT_NE(third->finish(), 0);
  second->await_output("rank 3 life 2 on host1");
  let_them_be_done({first.get(), second.get()});
}

TEST_F(RunWithSpareNodes, TheLastHostsOfAListAreSpares) {
  auto agents = start(
      0, {"-H", "10.77.0.1:2,10.77.0.2:2,10.77.0.3:2", "--spare-nodes", "1", "--on-failure",
          "replace", "--max-restarts", "3", "/bin/sh", "-c",
          "echo rank $RANK of $WORLD_SIZE life $LOCKSTEP_RESTART_COUNT" + and_wait_until_done()});
  agents->await_output("of 4 life 0", 4);
  agents->await_error("10.77.0.3 is a spare");
  ::kill(agent_on(*network_, 1), SIGKILL);
  agents->await_output("of 4 life 1", 2);
  EXPECT_THAT(agents->err, HasSubstr("the agent on 10.77.0.2 (10.77.0.2, ranks 2 to 3) vanished"));
  EXPECT_THAT(agents->err, HasSubstr("; ranks 2 to 3 are started on 10.77.0.3"));
  let_them_be_done({agents.get()});
}

TEST_F(RunWithSpareNodes, AHostThatIsLostAfterTheLastStepIsNotMissed) {
  const Words past_the_end = {"-np", "1", test_program(), "past-the-end", folder_.path().string()};
  auto first = start_spared(0, past_the_end);
  auto second = start_spared(1, past_the_end);
  first->await_output("is past the end");
  second->await_output("is past the end");
  ::kill(agent_on(*network_, 1), SIGKILL);
  EXPECT_NE(second->finish(), 0);
  first->await_error("; all ranks had done their last step by then");
  std::ofstream(folder_.path() / "end") << "yes";
  EXPECT_EQ(first->finish(), 0) << first->err;
}

TEST_F(RunWithSpareNodes, WhatCannotBeMeantSoIsOneLine) {
  const auto refused = [&](const Words& words) {
    const Ended ended = run_on(0, words);
    EXPECT_EQ(ended.code, 2);
    return ended.err;
  };
  EXPECT_THAT(
      refused({"--nnodes", "2", "--spare-nodes", "1", "--rdzv-endpoint", "10.77.0.1", "true"}),
      HasSubstr("--spare-nodes=1 needs --on-failure=replace"));
  const Words replace = {"--on-failure", "replace", "--max-restarts", "1", "true"};
  const auto with = [&](Words words) {
    words.insert(words.end(), replace.begin(), replace.end());
    return words;
  };
  EXPECT_THAT(refused(with({"--spare-nodes", "1"})), HasSubstr("--spare-nodes=1 needs --nnodes"));
  EXPECT_THAT(
      refused(with({"--nnodes", "1:2", "--spare-nodes", "1", "--rdzv-endpoint", "10.77.0.1"})),
      HasSubstr("--spare-nodes=1 contradicts --nnodes=1:2"));
  EXPECT_THAT(refused(with({"--nnodes", "2", "--spare-nodes", "1", "--rdzv-endpoint",
                            "10.77.0.1,10.77.0.2"})),
              HasSubstr("--spare-nodes=1 does not go with a second --rdzv-endpoint"));
  EXPECT_THAT(refused(with({"-H", "10.77.0.1", "--spare-nodes", "1"})),
              HasSubstr("-H has 1 hosts, and at least one must have ranks"));
  EXPECT_THAT(refused(with({"-H", "10.77.0.2,10.77.0.1", "--spare-nodes", "1"})),
              HasSubstr("10.77.0.1 is this host, which leads the job and cannot be lost"));
}

}  // namespace run_spare_nodes_mp_test
}  // namespace lockstep::inline v0::cli
