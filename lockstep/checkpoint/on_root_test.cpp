#include "lockstep/checkpoint/on_root.h"

#include <gtest/gtest.h>

#include <atomic>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::on_root_test {

TEST(OnRoot, RunsOnceAndTheOthersWait) {
  std::atomic<int> runs = 0;
  testing::run_threads(3, [&](Communicator& comm) {
    on_root(comm, [&] { ++runs; }, 1);
    EXPECT_EQ(runs, 1);
  });
}

TEST(OnRoot, ItsFailureReachesAllAndTheCommunicatorGoesOn) {
  std::atomic<int> caught = 0;
  testing::run_threads(3, [&](Communicator& comm) {
    try {
      on_root(comm, [] { throw SystemError("disk full", 28); });
    } catch (const SystemError& error) {
      EXPECT_STREQ(error.what(), "disk full");
      EXPECT_EQ(error.errnum(), 28);
      ++caught;
    }
    try {
      on_root(comm, [] { throw DataError("damaged"); });
    } catch (const DataError&) {
      EXPECT_EQ(comm.rank(), 0);
      ++caught;
    } catch (const CheckpointError& error) {
      EXPECT_STREQ(error.what(), "damaged");
      ++caught;
    }
    comm.barrier();
  });
  EXPECT_EQ(caught, 6);
}

}  // namespace lockstep::inline v0::on_root_test
