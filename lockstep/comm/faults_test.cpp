#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::faults_test {
namespace {

// The faults that are possible with threads; faults_mp_test.cpp has those of processes.
TEST(Faults, EveryThreadGetsTheRightErrorInTime) {
  int tried = 0;
  for (const testing::Fault& fault : testing::all_faults()) {
    if (fault.needs_process) continue;
    ++tried;
    std::mutex mutex;
    testing::run_threads(testing::kFaultSize,
                         [&](Communicator& comm) {
                           const std::string wrong = testing::run_fault(comm, fault, {});
                           const std::lock_guard lock(mutex);
                           EXPECT_EQ(wrong, "") << fault.name << ", rank " << comm.rank();
                         },
                         {.timeout = testing::fault_timeout(fault)});
  }
  EXPECT_GE(tried, 10);
}

}  // namespace
}  // namespace lockstep::inline v0::faults_test
