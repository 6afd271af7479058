#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::faults_mp_test {
namespace {

// A backend of processes; one line adds it to every fault of the table.
struct Engine {
  const char* name;
  testing::FaultTraits traits = {};
  bool gives_back_threads = true;  // before the communicator's destructor returns
};
constexpr Engine kEngines[] = {
    {.name = "shm"},
    {.name = "tcp"},
    {.name = "hierarchical"},
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

}  // namespace
}  // namespace lockstep::faults_mp_test
