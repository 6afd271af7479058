#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cctype>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"

namespace lockstep::inline v0::faults_mp_test {
namespace {

// A backend with processes; one line adds it to every fault of the table.
struct Engine {
  const char* name;
  testing::FaultTraits traits = {};
  bool gives_back_threads = true;  // before the communicator's destructor returns
  bool long_only = false;
};
constexpr Engine kEngines[] = {
    {.name = "shm"},
    {.name = "tcp"},
    {.name = "hierarchical", .long_only = true},  // on a single host it equals shm
    {.name = "gloo", .gives_back_threads = false},
};

struct Case {
  Engine engine;
  const testing::Fault* fault;
  std::string name() const { return engine.name + fault->name; }
  friend std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name(); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Engine& engine : kEngines) {
    if (engine.long_only && !testing::long_tests()) continue;
    for (const testing::Fault& fault : testing::faults()) {
      if (fault.error == testing::FaultError::kMismatch && !engine.traits.names_calls) continue;
      all.push_back({engine, &fault});
    }
  }
  return all;
}

class Faults : public ::testing::TestWithParam<Case> {};

TEST_P(Faults, EverySurvivorGetsTheRightErrorInTimeAndLeaksNothing) {
  const Engine& engine = GetParam().engine;
  const testing::Fault& fault = *GetParam().fault;
  const testing::Holdings parent = testing::holdings();
  std::map<int, int> ends;
  if (fault.end != 0) ends[testing::kFaultyRank] = fault.end;
  testing::expect_lone_ranks(
      testing::kFaultSize,
      [&engine, &fault] {
        const testing::Holdings before = testing::holdings();
        {
          Communicator comm =
              init({.backend = engine.name, .timeout = testing::fault_timeout(fault)});
          EXPECT_EQ(testing::run_fault(comm, fault, engine.traits), "");
        }
        const testing::Holdings after = testing::holdings_after(before);
        EXPECT_LE(after.fds, before.fds);
        EXPECT_LE(after.memfds, before.memfds);
        EXPECT_LE(after.children, before.children);
        if (engine.gives_back_threads) {
          EXPECT_LE(after.threads, before.threads);
        }
      },
      ends);
  const testing::Holdings now = testing::holdings_after(parent);
  EXPECT_LE(now.fds, parent.fds);
  EXPECT_LE(now.children, parent.children);
}

INSTANTIATE_TEST_SUITE_P(Backends, Faults, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name(); });

// On shm the other ranks read large messages from memory that has been freed.
TEST(LargeMessages, ARankThatDiesWithLargeMessagesUnderWay) {
  for (const char* backend : {"shm", "tcp", "gloo"}) {
    testing::expect_lone_ranks(
        3,
        [backend] {
          Communicator comm = init({.backend = backend, .timeout = std::chrono::seconds(30)});
          const at::Tensor tensor = at::zeros({4'000'000});
          if (comm.rank() == 1) {
            const Work to_0 = comm.isend(tensor, 0), to_2 = comm.isend(tensor, 2);
            ::kill(::getpid(), SIGKILL);
          }
          const auto start = std::chrono::steady_clock::now();
          try {
            for (int i = 0; i < 2; ++i) comm.recv(tensor, 1);  // the first may have arrived
            ADD_FAILURE() << "no error";
          } catch (const PeerLost& error) {
            EXPECT_EQ(error.rank(), 1) << error.what();
          }
          EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
        },
        {{1, SIGKILL}}, {}, backend);
  }
}

TEST(LargeMessages, ARankThatDiesWhileOthersSendToIt) {
  for (const char* backend : {"shm", "tcp", "gloo"}) {
    testing::expect_lone_ranks(
        3,
        [backend] {
          Communicator comm = init({.backend = backend, .timeout = std::chrono::seconds(30)});
          if (comm.rank() == 1) {
            const at::Tensor first = at::zeros({1});
            for (const int sender : {0, 2}) comm.recv(first, sender);  // the large ones follow
            ::kill(::getpid(), SIGKILL);
          }
          comm.send(at::zeros({1}), 1);
          const auto start = std::chrono::steady_clock::now();
          try {
            comm.send(at::zeros({8'000'000}), 1);
            ADD_FAILURE() << "no error";
          } catch (const PeerLost& error) {
            EXPECT_EQ(error.rank(), 1) << error.what();
          }
          EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
        },
        {{1, SIGKILL}}, {}, backend);
  }
}

// ---- a rank that is stopped in init() ----

struct Step {
  const char* backend;
  const char* what;  // as in Joining::step()
  bool long_only = true;
  bool all_survive = true;  // false: only rank 0 needs the stopped rank then
  friend std::ostream& operator<<(std::ostream& out, const Step& one) {
    return out << one.backend << ", " << one.what;
  }
};

std::vector<Step> steps() {
  std::vector<Step> all;
  for (const char* backend : {"shm", "tcp", "hierarchical", "gloo"}) {
    const bool first = backend == std::string("shm");
    all.push_back({backend, "reaching the job's store", !first});
    all.push_back({backend, "meeting the other ranks in the store"});
    all.push_back({backend, "waiting until all ranks are connected"});
    all.push_back({backend, "leaving the store", true, false});
  }
  all.push_back({"shm", "connecting over shm"});
  all.push_back({"tcp", "connecting over tcp", false});
  all.push_back({"hierarchical", "connecting over hierarchical"});
  all.push_back({"gloo", "connecting the side channel of gloo"});
  all.push_back({"gloo", "connecting over gloo, after its side channel", false});
  if (!testing::long_tests()) std::erase_if(all, [](const Step& step) { return step.long_only; });
  return all;
}

class StoppedInInit : public ::testing::TestWithParam<Step> {};

// Only the stopped rank is blamed, by the survivor's error and for the agent.
void expect_rank_1_blamed(const std::exception& error, std::chrono::nanoseconds after) {
  const auto* late = dynamic_cast<const LateRank*>(&error);
  const auto* lost = dynamic_cast<const PeerLost*>(&error);
  EXPECT_EQ(late != nullptr   ? late->rank()
            : lost != nullptr ? lost->rank()
                              : -1,
            1)
      << error.what();
  EXPECT_EQ(std::string(error.what()).find("init(): rank 1 "), 0u) << error.what();
  EXPECT_LT(after, std::chrono::seconds(5)) << error.what();
}

TEST_P(StoppedInInit, IsNamedByEverySurvivor) {
  const Step& step = GetParam();
  testing::expect_lone_ranks(
      3,
      [&step] {
        const auto start = std::chrono::steady_clock::now();
        const int rank = static_cast<int>(env_int(process_env(), "RANK").value());
        try {
          init_by_steps({.backend = step.backend, .timeout = std::chrono::seconds(2)},
                        [&](const std::string& what) {
                          if (rank == 1 && what == step.what) ::raise(SIGSTOP);
                        });
          EXPECT_TRUE(rank == 2 && !step.all_survive) << "no error";
        } catch (const Error& error) {
          expect_rank_1_blamed(error, std::chrono::steady_clock::now() - start);
        }
      },
      {{1, SIGSTOP}});
}

INSTANTIATE_TEST_SUITE_P(Steps, StoppedInInit, ::testing::ValuesIn(steps()), [](const auto& info) {
  std::string name = info.param.backend;
  bool upper = true;
  for (const char* c = info.param.what; *c != '\0'; ++c) {
    const bool letter = std::isalpha(static_cast<unsigned char>(*c)) != 0;
    if (letter) name += upper ? static_cast<char>(std::toupper(*c)) : *c;
    upper = !letter;
  }
  return name;
});

// ---- the agent's report ----

// The report of three ranks that run `rank`, started by an agent.
std::string report_of(const std::function<void()>& rank) {
  const testing::RankOptions point = testing::gtest_point();
  launch::LaunchOptions options;
  options.quiet = true;
  options.threads_per_rank = 1;
  const launch::LaunchResult result =
      launch::spawn(3, rank, options, {point.name, point.arguments});
  EXPECT_EQ(result.exit_code, 1);
  return result.failure ? launch::format_failure(*result.failure, 3) : "no failure";
}

TEST(AgentNames, ARankThatIsStoppedInACollective) {
  const std::string report = report_of([] {
    Communicator comm = init({.backend = "gloo", .timeout = std::chrono::seconds(5)});
    comm.barrier();
    if (comm.rank() == 1) ::raise(SIGSTOP);
    comm.barrier();
  });
  EXPECT_EQ(report.find("[lockstep] rank 1 of 3 is stopped (SIGSTOP), pid "), 0u) << report;
  EXPECT_NE(report.find("  last collective: #1 barrier at faults_mp_test.cpp"), std::string::npos)
      << report;
  EXPECT_EQ(report.find("failed first"), std::string::npos) << report;
}

TEST(AgentNames, ARankThatIsStoppedInInit) {
  const std::string report = report_of([] {
    const int rank = static_cast<int>(env_int(process_env(), "RANK").value());
    init_by_steps({.backend = "gloo", .timeout = std::chrono::seconds(5)},
                  [rank](const std::string& what) {
                    if (rank == 1 && what.starts_with("connecting over gloo")) ::raise(SIGSTOP);
                  });
  });
  EXPECT_EQ(report.find("[lockstep] rank 1 of 3 is stopped (SIGSTOP), pid "), 0u) << report;
  EXPECT_NE(report.find("  last collective: none yet; it is in init(): connecting over gloo"),
            std::string::npos)
      << report;
  EXPECT_EQ(report.find("failed first"), std::string::npos) << report;
}

// The rank is in no wait of Lockstep's: for example in a loader that hangs.
TEST(AgentNames, ARankThatRunsButDoesNotCome) {
  const std::string report = report_of([] {
    Communicator comm = init({.backend = "shm", .timeout = std::chrono::seconds(5)});
    comm.barrier();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    comm.barrier();
  });
  EXPECT_EQ(report.find("[lockstep] rank 1 of 3 did not come; its process runs, pid "), 0u)
      << report;
  EXPECT_EQ(report.find("failed first"), std::string::npos) << report;
}

}  // namespace
}  // namespace lockstep::inline v0::faults_mp_test
