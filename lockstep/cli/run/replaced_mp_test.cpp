// Tests `lockstep run --on-failure replace` on several hosts, which are network namespaces: a rank
// that is killed is started anew on its host, the others keep their processes, and the numbers are
// those of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "lockstep/cli/run/hosts_test.h"

namespace lockstep::inline v0::cli {
namespace run_replaced_mp_test {

using namespace hosts_test;  // NOLINT: a test's own helpers
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kHosts = 2, kRanks = 4;

class RunReplaced : public HostsTest {
 protected:
  using Agents = std::vector<std::unique_ptr<Running>>;
  Agents start_on_all(const Words& command) {
    Agents agents;
    for (int host = 0; host < kHosts; ++host) {
      Words words = {"--nnodes",
                     std::to_string(kHosts),
                     "--node-rank",
                     std::to_string(host),
                     "--master-addr",
                     "10.77.0.1",
                     "--master-port",
                     "29511",
                     "-np",
                     std::to_string(kRanks / kHosts),
                     "--on-failure",
                     "replace",
                     "--max-restarts",
                     "9"};
      words.insert(words.end(), command.begin(), command.end());
      agents.push_back(start(host, words));
    }
    return agents;
  }
  static void finish(Agents& agents) {
    for (auto& agent : agents) EXPECT_EQ(agent->finish(), 0) << agent->out << agent->err;
  }
  // Returns the output of rank 0.
  std::string run_example(const std::string& name, const Words& arguments) {
    // It writes its data into the folder in which it runs.
    Words command = {"/bin/sh", "-c", "cd '" + folder_.path().string() + "' && exec \"$0\" \"$@\"",
                     example(name)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Agents agents = start_on_all(command);
    finish(agents);
    const bool dies = !arguments.empty();
    std::string said;
    for (const auto& agent : agents) said += agent->err;
    EXPECT_EQ(said.find("is started again") != std::string::npos, dies) << said;
    EXPECT_EQ(said.find("rank 3 was replaced") != std::string::npos, dies) << said;
    return agents[0]->out;
  }
  static std::string example(const std::string& name) {
    return (fs::path(lockstep_program()).parent_path() / "examples" / name).string();
  }

  // The processes of ranks, by rank.
  std::map<int, pid_t> ranks() const {
    std::map<int, pid_t> found;
    for (int host = 0; host < kHosts; ++host) {
      for (const pid_t pid : network_->processes(host)) {
        const std::string of_process = "/proc/" + std::to_string(pid);
        const std::string variables = '\0' + text_of(of_process + "/environ");
        const std::string name = std::string(1, '\0') + "RANK=";
        const size_t at = variables.find(name);
        if (at == std::string::npos) continue;
        found[std::stoi(variables.substr(at + name.size()))] = pid;
      }
    }
    return found;
  }
};

TEST_F(RunReplaced, WholeAndDividedStatesGoOnInTheSameBits) {
  for (const std::string name : {"recovery", "recovery_divided"}) {
    if (!fs::exists(example(name))) GTEST_SKIP() << "the examples are not built";
    const std::string undisturbed = run_example(name, {});
    EXPECT_THAT(undisturbed, HasSubstr("40 steps"));
    for (const std::string step : {"0", "1", "20"})
      EXPECT_EQ(run_example(name, {"--kill-rank", "3", "--kill-step", step}), undisturbed)
          << name << " killed in step " << step;
  }
}

// A process that a test kills from outside at any time; the first time while it starts.
TEST_F(RunReplaced, TrainGoesOnWhoeverDiesWhenever) {
  const Words steps = {"--max-steps", "40", "--log-every", "5", "--save-every", "10"};
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    Agents quiet = start_on_all(train_lm(strategy, strategy, steps));
    finish(quiet);
    Agents agents = start_on_all(train_lm(strategy, strategy + "-killed", steps));
    std::map<int, pid_t> before;  // ranks that must keep their pid
    int kills = 0;
    for (const int rank : {3, 0, 2}) {
      const Deadline deadline = Deadline::seconds(60);
      const auto wanted = static_cast<std::ptrdiff_t>(2 * kills);
      std::map<int, pid_t> now = ranks();
      while ((now.size() < kRanks || lines_logged(strategy + "-killed") < wanted) &&
             !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        now = ranks();
      }
      ASSERT_FALSE(deadline.expired()) << agents[0]->out << agents[0]->err;
      for (const auto& [other, pid] : before) EXPECT_EQ(now.at(other), pid) << "rank " << other;
      ::kill(now.at(rank), SIGKILL);
      ++kills;
      before = now;
      before.erase(rank);
    }
    finish(agents);
    expect_same_checkpoint(strategy, strategy + "-killed");
  }
}

// No process on its own host has noticed.
TEST_F(RunReplaced, ARankThatStandsStillIsReplacedWhereOnlyAnotherHostWaitsForIt) {
  Agents agents;
  for (int host = 0; host < kHosts; ++host)
    agents.push_back(
        start(host, {"--nnodes", "2", "--node-rank", std::to_string(host), "--master-addr",
                     "10.77.0.1", "--master-port", "29511", "--on-failure", "replace",
                     "--max-restarts", "1", test_program(), "outwait", "patient"}));
  finish(agents);
  EXPECT_EQ(agents[0]->out, "rank 0 life 0\n");
  EXPECT_EQ(agents[1]->out, "rank 1 life 1\n");
  EXPECT_THAT(agents[1]->err, HasSubstr("rank 1 stands still (SIGSTOP), pid "));
}

// No process on its own host stands still.
TEST_F(RunReplaced, WhoLostPatienceWithARankOfAnotherHostIsNotCounted) {
  Agents agents;
  for (int host = 0; host < kHosts; ++host)
    agents.push_back(
        start(host, {"--nnodes", "2", "--node-rank", std::to_string(host), "--master-addr",
                     "10.77.0.1", "--master-port", "29511", "--on-failure", "replace",
                     "--max-restarts", "1", test_program(), "outwait", "impatient"}));
  finish(agents);
  EXPECT_EQ(agents[0]->out, "rank 0 life 1\n");
  EXPECT_EQ(agents[1]->out, "rank 1 life 1\n");
  EXPECT_THAT(agents[0]->err, HasSubstr("it is started again, uncounted"));
  EXPECT_THAT(agents[1]->err, HasSubstr("rank 1 stands still (SIGSTOP), pid "));
}

}  // namespace run_replaced_mp_test
}  // namespace lockstep::inline v0::cli
