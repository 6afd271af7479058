#include "lockstep/train/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::straggler_test {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Ten steps of which the rank `late` (-1: none) takes three times as long, then a comparison.
void ten_steps(StragglerMonitor& monitor, const Communicator& comm, int late, int64_t& step) {
  for (int i = 0; i < 10; ++i) monitor.add_step(comm.rank() == late ? 0.3 : 0.1);
  monitor.compare(step += 10);
}

TEST(StragglerMonitor, RankZeroSaysOnceThatARankBeginsToBeLateAndOnceThatItEnds) {
  ::testing::internal::CaptureStderr();
  std::array<int, 4> named{};
  testing::run_threads(4, [&](Communicator& comm) {
    StragglerMonitor monitor(comm);
    int64_t step = 0;
    for (const int late : {-1, 2, 2, 2, 2}) ten_steps(monitor, comm, late, step);
    named[static_cast<size_t>(comm.rank())] = monitor.straggler().value_or(Straggler{}).rank;
    EXPECT_THAT(monitor.host(2), Not(IsEmpty()));
    for (const int late : {-1, -1}) ten_steps(monitor, comm, late, step);
    EXPECT_FALSE(monitor.straggler());
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(named, ::testing::Each(2)) << "all ranks know";
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_THAT(
      said,
      AllOf(HasSubstr("slower than the others since step 11: its own work takes 0.300 s a step, "
                      "theirs 0.100 s\n"),
            HasSubstr("as fast as the others again by step 60; it had been slower since step 11")));
}

TEST(StragglerMonitor, OnlyTheRankThatIsTooSlowIsEvicted) {
  ::testing::internal::CaptureStderr();
  std::array<bool, 3> evicted{};
  testing::run_threads(3, [&](Communicator& comm) {
    StragglerMonitor monitor(comm, {.evict = 2.5, .evict_windows = 3});
    int64_t step = 0;
    try {
      for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(evicted[static_cast<size_t>(comm.rank())]);
        ten_steps(monitor, comm, 1, step);
      }
    } catch (const Evicted& error) {
      evicted[static_cast<size_t>(comm.rank())] = true;
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 (on "), HasSubstr("since step 1:"),
                                      HasSubstr("for the launcher to start it anew")));
    }
    EXPECT_EQ(step, 30);
  });
  ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(evicted, ::testing::ElementsAre(false, true, false));
}

TEST(StragglerMonitor, WhatALoopWaitsIsNotItsOwnWork) {
  std::atomic<bool> comes{false};
  testing::run_threads(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!comes) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    const double before = comm.waited();
    comes = true;
    comm.barrier();
    const double waited = comm.waited() - before;
    EXPECT_GE(waited, comm.rank() == 0 ? 0.001 : 0);
    EXPECT_LT(waited, 30);
    Communicator group = comm.duplicate();
    const double of_all = comm.waited();
    group.barrier();
    EXPECT_GT(comm.waited(), of_all) << "groups count too";
  });
}

TEST(Eviction, NeedsALauncherThatStartsRanksAnew) {
  using Variables = std::map<std::string, std::string, std::less<>>;
  const auto env = [](Variables variables) {
    return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
  };
  const auto error = [&](double evict, const Variables& variables) -> std::string {
    try {
      check_eviction(evict, env(variables));
    } catch (const InvalidArgument& refused) {
      return refused.what();
    }
    return "";
  };
  const Variables all{{"TORCHELASTIC_MAX_RESTARTS", "2"}, {"TORCHELASTIC_RESTART_COUNT", "1"}};
  EXPECT_EQ(error(0, {}), "");
  EXPECT_EQ(error(3, all), "");
  EXPECT_THAT(error(3, {}), HasSubstr("--on-failure replace --max-restarts N"));
  EXPECT_THAT(error(3, {{"TORCHELASTIC_MAX_RESTARTS", "0"}}), HasSubstr("evict_stragglers is 3"));
  EXPECT_THAT(error(0.5, all), HasSubstr("above 1"));
  EXPECT_TRUE(restarts_are_left(env(all)));
  EXPECT_FALSE(restarts_are_left(
      env({{"TORCHELASTIC_MAX_RESTARTS", "2"}, {"TORCHELASTIC_RESTART_COUNT", "2"}})))
      << "the last attempt goes on";
  EXPECT_TRUE(restarts_are_left(
      env({{"TORCHELASTIC_MAX_RESTARTS", "2"}, {"LOCKSTEP_ON_FAILURE", "replace"}})));
  EXPECT_FALSE(restarts_are_left(env({})));
}

}  // namespace lockstep::straggler_test
