#include "lockstep/train/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::straggler_test {

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

TEST(StragglerMonitor, NobodyIsNamedWhereAllAreAlike) {
  ::testing::internal::CaptureStderr();
  testing::run_threads(4, [](Communicator& comm) {
    StragglerMonitor monitor(comm, {.evict = 1.5});
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::uniform_real_distribution<double> seconds(0.09, 0.11);
    for (int64_t step = 1; step <= 200; ++step) {
      monitor.add_step(seconds(random));
      if (step % 10 != 0) continue;
      monitor.compare(step);
      EXPECT_FALSE(monitor.straggler()) << "step " << step;
    }
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

using Variables = std::map<std::string, std::string, std::less<>>;

EnvLookup env(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Eviction, NeedsALauncherThatStartsRanksAnew) {
  const auto error = [&](double evict, const auto& restarts) -> std::string {
    try {
      check_eviction(evict, restarts);
    } catch (const InvalidArgument& refused) {
      return refused.what();
    }
    return "";
  };
  const EnvLookup two = env({{"TORCHELASTIC_MAX_RESTARTS", "2"}});
  EXPECT_EQ(error(0, env({})), "");
  EXPECT_EQ(error(3, two), "");
  EXPECT_THAT(error(3, env({})), HasSubstr("--on-failure replace --max-restarts N"));
  EXPECT_THAT(error(3, env({{"TORCHELASTIC_MAX_RESTARTS", "0"}})),
              HasSubstr("evict_stragglers is 3"));
  EXPECT_THAT(error(0.5, two), HasSubstr("above 1"));
  EXPECT_EQ(error(3, 1), "");
  EXPECT_EQ(error(0, 0), "");
  EXPECT_THAT(error(3, 0), HasSubstr("--on-failure replace --max-restarts N"));
}

// Whether rank 1 of three is evicted for being slow; of_rank[r]: what the launcher has told rank r.
bool evicts(const std::array<Variables, 3>& of_rank) {
  ::testing::internal::CaptureStderr();
  std::atomic<bool> evicted{false};
  testing::run_threads(3, [&](Communicator& comm) {
    StragglerMonitor monitor(comm, {.windows = 1, .evict = 2.5, .evict_windows = 1},
                             env(of_rank[static_cast<size_t>(comm.rank())]));
    int64_t step = 0;
    try {
      ten_steps(monitor, comm, 1, step);
    } catch (const Evicted&) {
      EXPECT_EQ(comm.rank(), 1);
      evicted = true;
    }
  });
  ::testing::internal::GetCapturedStderr();
  return evicted;
}

TEST(Eviction, TheReplacementsAreThoseOfAllRanksOfAHost) {
  const auto rank = [](const char* host, const char* restarts) {
    return Variables{{"LOCKSTEP_ON_FAILURE", "replace"},
                     {"TORCHELASTIC_MAX_RESTARTS", "2"},
                     {"GROUP_RANK", host},
                     {"LOCKSTEP_RESTART_COUNT", restarts}};
  };
  EXPECT_TRUE(evicts({rank("0", "0"), rank("0", "1"), rank("0", "0")}));
  EXPECT_FALSE(evicts({rank("0", "0"), rank("0", "2"), rank("0", "0")})) << "its own";
  EXPECT_FALSE(evicts({rank("0", "1"), rank("0", "0"), rank("0", "1")})) << "the others'";
  EXPECT_TRUE(evicts({rank("0", "1"), rank("0", "0"), rank("1", "1")})) << "another host's";
}

TEST(Eviction, RestartsOfAllRanksCountOnce) {
  const auto all = [](const char* restarts, const char* most) {
    const Variables rank{{"TORCHELASTIC_MAX_RESTARTS", most},
                         {"TORCHELASTIC_RESTART_COUNT", restarts}};
    return std::array<Variables, 3>{rank, rank, rank};
  };
  EXPECT_TRUE(evicts(all("1", "2")));
  EXPECT_FALSE(evicts(all("2", "2"))) << "the last attempt goes on";
  EXPECT_FALSE(evicts(all("0", "0")));
  EXPECT_TRUE(evicts({})) << "who starts it anew is the program's affair";
}

}  // namespace lockstep::inline v0::straggler_test
