#include "lockstep/comm/forked_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0 {
namespace forked_rank_mp_test {

// Whatever the test's process has done before.
TEST(ForkedRank, BeginsLikeAProcessThatStarts) {
  if (!can_fork_ranks()) GTEST_SKIP() << "a sanitizer, or the process has more than one thread";
  const at::Tensor first = at::rand({3}, at::detail::createCPUGenerator());
  at::manual_seed(7);
  testing::expect_ranks(2, [&](Communicator&) {
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_TRUE(at::equal(at::rand({3}), first));
  });
}

TEST(ForkedRank, IsNoneWhereAnotherThreadMayHoldALock) {
  std::promise<void> end;
  std::thread other([&] { end.get_future().wait(); });
  EXPECT_FALSE(can_fork_ranks());
  end.set_value();
  other.join();
}

}  // namespace forked_rank_mp_test
}  // namespace lockstep::inline v0
