#include <gtest/gtest.h>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/gtest_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::operations_test {
namespace {

class LocalOperations : public ::testing::TestWithParam<int> {};

// With slots of 2 KiB the long tensors take many rounds, and 1009 elements take more than one.
TEST_P(LocalOperations, AgreeWithTheOracle) {
  testing::expect_suite(
      [](const auto& fn) { testing::run_threads(GetParam(), fn, {.slot_bytes = 2048}); },
      [](const Communicator&) { return testing::SuiteOptions{.long_bytes = 20'011}; });
}

TEST(LocalRanks, AgreeWhereTheyAreFarApart) {
  testing::expect_apart([](const auto& fn) { testing::run_threads(3, fn); },
                        {.in_a_row = kSanitized ? 10'000 : 100'000, .groups = true});
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalOperations, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace lockstep::inline v0::operations_test
