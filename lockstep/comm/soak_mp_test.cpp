// Very many calls leave nothing behind. 10^6 calls, and minutes of mixed ones, if
// LOCKSTEP_LONG_TESTS is 1 (scripts/test --full); otherwise a fiftieth of that.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/functional.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/env.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::soak_mp_test {
namespace {

bool long_tests() {
  return testing::long_tests();
}

int64_t times(int64_t n) {
  return long_tests() ? n : n / 50;
}

// The same on all ranks.
class Sequence {
 public:
  int64_t next(int64_t below) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(below));
  }

 private:
  uint64_t state_ = 42;
};

void small_call(Communicator& comm, int64_t i, const at::Tensor& t) {
  switch (i % 4) {
    case 0:
      comm.barrier();
      break;
    case 1:
      comm.broadcast(t, static_cast<int>(i / 4 % comm.size()));
      break;
    default:
      comm.all_reduce(t, ReduceOp::kMax);
  }
}

void mixed_call(Communicator& comm, Sequence& sequence) {
  const int64_t n = sequence.next(10) == 0 ? sequence.next(200'000) : sequence.next(1500);
  const int root = static_cast<int>(sequence.next(comm.size()));
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const at::Tensor t = at::full({n}, comm.rank() + 1.0f);
  switch (sequence.next(12)) {
    case 0:
      comm.reduce(t, root);
      break;
    case 1:
      comm.all_gather(t);
      break;
    case 2:
      comm.all_gatherv(at::ones({comm.rank() + n}));
      break;
    case 3:
      comm.reduce_scatter(at::ones({n * comm.size()}, at::kBFloat16), ReduceOp::kAvg);
      break;
    case 4:
      comm.all_to_all(at::ones({n * comm.size()}, at::kLong));
      break;
    case 5: {
      Work sent = comm.isend(t, next, 7);
      comm.recv(at::zeros({n}), previous, 7);
      sent.wait();
      break;
    }
    case 6: {
      Work first = comm.iall_reduce(t);
      Work second = comm.ibroadcast(at::zeros({n}, at::kInt), root);
      second.wait();
      first.wait();
      break;
    }
    case 7:
      comm.gather(t, root);
      break;
    case 8:
      all_gather_object(comm, {{"n", n}, {"rank", comm.rank()}});
      break;
    case 9: {
      const std::vector<at::Tensor> list = {t, at::ones({3}), at::ones({n}, at::kInt)};
      all_reduce_coalesced(comm, list);
      break;
    }
    case 10: {
      const at::Tensor x = at::ones({n}).requires_grad_(true);
      functional::all_reduce(comm, x * x).sum().backward();
      break;
    }
    default:
      if (sequence.next(20) == 0) comm.split(static_cast<int>(sequence.next(2)))->barrier();
  }
}

// One rank after the other, since threads share the counted resources.
testing::Holdings holdings_in_turn(Communicator& comm) {
  testing::Holdings result;
  for (int r = 0; r < comm.size(); ++r) {
    comm.barrier();
    if (r == comm.rank()) result = testing::holdings();
  }
  comm.barrier();
  return result;
}

// The process holds as much after `n` calls as after the first part of them.
void soak(Communicator& comm, int64_t n, const std::function<void(int64_t)>& call) {
  for (int64_t i = 0; i < n / 5; ++i) call(i);
  const testing::Holdings before = holdings_in_turn(comm);
  for (int64_t i = 0; i < n; ++i) call(i);
  const testing::Holdings after = holdings_in_turn(comm);
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.memfds, before.memfds);
  EXPECT_LE(after.threads, before.threads);
  std::printf("%lld calls: %+lld bytes of the heap, %+lld KiB of %lld\n", static_cast<long long>(n),
              static_cast<long long>(after.heap_bytes - before.heap_bytes),
              static_cast<long long>(after.rss_kib - before.rss_kib),
              static_cast<long long>(before.rss_kib));
  // A leak of four bytes per call would be visible after 10^6 calls.
  EXPECT_LT(after.heap_bytes - before.heap_bytes, std::max<int64_t>(4 * n, 256 * 1024));
  // Pages are touched as malloc and shared memory grow: 6 to 13 MB in a thousand calls.
  EXPECT_LT(after.rss_kib - before.rss_kib, 32'000) << "of " << before.rss_kib;
}

void soak_small(Communicator& comm, int64_t n) {
  const at::Tensor t = at::ones({4});
  soak(comm, n, [&](int64_t i) { small_call(comm, i, t); });
}

void soak_mixed(Communicator& comm, int64_t n) {
  Sequence sequence;
  soak(comm, n, [&](int64_t) { mixed_call(comm, sequence); });
}

testing::RankOptions long_ranks(const char* backend) {
  return {.backend = backend,
          .timeout = std::chrono::seconds(120),
          .deadline = std::chrono::seconds(500)};
}

TEST(Soak, SmallCollectivesOfThreads) {
  testing::run_threads(2, [](Communicator& comm) { soak_small(comm, times(1'000'000)); });
}

TEST(Soak, SmallCollectivesOfProcesses) {
  testing::expect_ranks(
      2, [](Communicator& comm) { soak_small(comm, times(1'000'000)); }, long_ranks("shm"));
}

TEST(Soak, SmallCollectivesOverGloo) {
  // libtorch's record of the last 2,000 calls fills up once, and would look like a leak.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  testing::expect_ranks(
      2, [](Communicator& comm) { soak_small(comm, times(5'000)); }, long_ranks("gloo"));
}

TEST(Soak, MixedOfThreads) {
  testing::run_threads(2, [](Communicator& comm) { soak_mixed(comm, 50'000); });
}

TEST(Soak, MixedOfProcesses) {
  testing::expect_ranks(
      2, [](Communicator& comm) { soak_mixed(comm, times(200'000)); }, long_ranks("shm"));
}

}  // namespace
}  // namespace lockstep::inline v0::soak_mp_test
