#include "lockstep/comm/algorithms/ring.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::algorithms::ring_test {
namespace {

// The header documents the steps, and the payload bytes by the communicator's own count.
TEST(Ring, StepsAndBytesAreThoseDocumented) {
  for (const int n : {1, 2, 3, 4, 5}) {
    testing::run_threads(n, [n](Communicator& comm) {
      const int64_t count = 840;  // divides by 1 to 5: no padding
      const int64_t bytes = count * 4;
      const at::Tensor t = at::full({count}, 1.0f);
      const uint64_t before = comm.stats().of(Op::kSend).bytes;
      const RingCost chunked = ring_all_reduce(comm, t);
      EXPECT_EQ(chunked.steps, 2 * (n - 1));
      EXPECT_EQ(chunked.bytes_sent, 2 * (n - 1) * bytes / n);
      EXPECT_EQ(comm.stats().of(Op::kSend).bytes - before,
                static_cast<uint64_t>(chunked.bytes_sent));
      const uint64_t middle = comm.stats().of(Op::kSend).bytes;
      const RingCost naive = naive_ring_all_reduce(comm, t);
      EXPECT_EQ(naive.steps, n - 1);
      EXPECT_EQ(naive.bytes_sent, (n - 1) * bytes);
      EXPECT_EQ(comm.stats().of(Op::kSend).bytes - middle, static_cast<uint64_t>(naive.bytes_sent));
      EXPECT_EQ(t[0].item<float>(), static_cast<float>(n * n));
    });
  }
}

// Random numbers do not add up exactly: equal bits mean an equal order. The tutorial's ring fails
// this.
TEST(Ring, EveryRankHoldsTheSameBits) {
  for (const bool naive : {false, true}) {
    std::mutex mutex;
    std::vector<at::Tensor> results;
    testing::run_threads(4, [&](Communicator& comm) {
      at::Tensor t = at::empty({1001});
      auto* data = t.mutable_data_ptr<float>();
      uint32_t state = 12345u + 77u * static_cast<uint32_t>(comm.rank());
      for (int64_t i = 0; i < t.numel(); ++i) {
        state = state * 1664525u + 1013904223u;
        data[i] = static_cast<float>(state) / 1e9f;
      }
      if (naive)
        naive_ring_all_reduce(comm, t, ReduceOp::kAvg);
      else
        ring_all_reduce(comm, t, ReduceOp::kAvg);
      const std::lock_guard lock(mutex);
      results.push_back(t);
    });
    for (const at::Tensor& result : results)
      EXPECT_TRUE(result.equal(results[0])) << (naive ? "naive" : "chunked");
  }
}

TEST(Ring, RefusesWhatAllReduceRefuses) {
  testing::run_threads(1, [](Communicator& comm) {
    EXPECT_THROW(ring_all_reduce(comm, at::full({2}, 1, at::kInt), ReduceOp::kAvg),
                 InvalidArgument);
    EXPECT_THROW(naive_ring_all_reduce(comm, at::full({2}, 1.0f), ReduceOp::kBitXor),
                 InvalidArgument);
    EXPECT_THROW(ring_all_reduce(comm, at::Tensor()), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::algorithms::ring_test
