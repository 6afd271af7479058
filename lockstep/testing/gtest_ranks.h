// run_ranks for GoogleTest programs. Header-only: the testing room itself does not link GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/testing/lone_ranks.h"
#include "lockstep/testing/process_ranks.h"

namespace lockstep::inline v0::testing {

// Fills in name and arguments so that a child runs the current test only. `part`: which call, where
// a test has several.
inline RankOptions gtest_point(RankOptions options = {}, const std::string& part = "") {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string test = std::string(info->test_suite_name()) + "." + info->name();
  options.name = test + "#" + part;
  options.arguments = {"--gtest_filter=" + test, "--gtest_brief=1", "--gtest_catch_exceptions=0"};
  return options;
}

// A rank's expectations that failed become its exception, so that the process fails.
inline void throw_if_failed() {
  if (::testing::Test::HasFailure())
    throw std::runtime_error("expectations failed on this rank, see above");
}

// Runs the ranks and adds a test failure, with their report, unless all end well.
inline void expect_ranks(int size, const std::function<void(Communicator&)>& fn,
                         RankOptions options = {}, const std::string& part = "") {
  const RankResult result = run_ranks(
      size,
      [&fn](Communicator& comm) {
        fn(comm);
        throw_if_failed();
      },
      gtest_point(std::move(options), part));
  EXPECT_EQ(result.launch.exit_code, 0) << result.report;
}

// gtest_point for run_lone_ranks.
inline LoneOptions lone_point(LoneOptions options = {}, const std::string& part = "") {
  RankOptions point = gtest_point({}, part);
  options.name = std::move(point.name);
  options.arguments = std::move(point.arguments);
  return options;
}

// Runs the ranks without a launcher and adds a test failure, with their output, unless each ends
// well or as `ends` says: the signal that ends it, SIGSTOP for one that stops itself, or minus its
// exit code.
inline void expect_lone_ranks(int size, const std::function<void()>& fn,
                              const std::map<int, int>& ends = {}, LoneOptions options = {},
                              const std::string& part = "") {
  const std::vector<LoneRank> ranks = run_lone_ranks(
      size,
      [&fn] {
        fn();
        throw_if_failed();
      },
      lone_point(std::move(options), part));
  for (size_t r = 0; r < ranks.size(); ++r) {
    const LoneRank& rank = ranks[r];
    const auto it = ends.find(static_cast<int>(r));
    const int expected = it == ends.end() ? 0 : it->second;
    const int end = rank.was_stopped          ? SIGSTOP
                    : rank.status.signal != 0 ? rank.status.signal
                                              : -rank.status.exit_code;
    EXPECT_TRUE(end == expected && !rank.timed_out)
        << "rank " << r << " ended with " << end
        << (rank.timed_out ? " (killed at the deadline)" : "") << ", expected " << expected
        << " (a signal, or minus an exit code); its output:\n"
        << rank.output;
  }
}

}  // namespace lockstep::inline v0::testing
