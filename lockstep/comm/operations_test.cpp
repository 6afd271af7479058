#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/testing/operation_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::operations_test {
namespace {

class LocalOperations : public ::testing::TestWithParam<int> {};

// Slots of 2 KiB make the long tensors take many rounds, and 1009 elements more than one.
TEST_P(LocalOperations, AgreeWithTheOracle) {
  std::mutex mutex;
  int64_t checked = 0;
  testing::run_threads(GetParam(),
                       [&](Communicator& comm) {
                         const testing::SuiteReport report =
                             testing::run_operation_suite(comm, {.long_bytes = 20'011});
                         const std::lock_guard lock(mutex);
                         checked += report.checked;
                         for (const std::string& failure : report.failures)
                           ADD_FAILURE() << failure;
                       },
                       {.slot_bytes = 2048});
  EXPECT_GT(checked, 1000);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalOperations, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace lockstep::operations_test
