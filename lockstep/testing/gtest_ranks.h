// run_ranks for GoogleTest programs. Header-only: the testing room itself does not link GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/testing/process_ranks.h"

namespace lockstep::testing {

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

}  // namespace lockstep::testing
