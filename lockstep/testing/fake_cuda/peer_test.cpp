// The engine peer on devices that the host plays, ranks as threads: its values are those of the
// engine of the host to the bit. What it does as staged does is in staged_test.cpp, and what
// processes do in fake_cuda_mp_test.cpp.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/peer/blocks.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/gtest_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

class PeerOnFakeCuda : public WithoutRaces {};

SuiteOptions peer_suite(const Communicator& comm) {
  return {.dtypes = {at::kFloat, at::kBFloat16, at::kBool},
          .sizes = {0, 1, 13, 512},
          .long_bytes = 5003,
          .every_root = false,
          .device = comm.device()};
}

TEST_F(PeerOnFakeCuda, TheOperationSuiteInWindows) {
  for (const int size : {2, 4}) {
    expect_suite([&](const auto& fn) { run_on_peer(size, fn, {.peer_sizes = kFewPeerBytes}); },
                 peer_suite);
  }
}

TEST_F(PeerOnFakeCuda, RanksShareADevice) {
  expect_suite(
      [](const auto& fn) {
        run_on_peer(2, fn, {.devices = 1, .peer_sizes = {.slot_bytes = 1 << 16}});
      },
      [](const Communicator& comm) {
        return SuiteOptions{.dtypes = {at::kDouble, at::kHalf, at::kChar, at::kShort, at::kInt,
                                       at::kLong, at::kByte},
                            .sizes = {1, 13},
                            .long_bytes = 0,
                            .every_root = false,
                            .device = comm.device()};
      });
}

TEST_F(PeerOnFakeCuda, SaysWhatItIs) {
  run_on_peer(2, [](Communicator& comm) {
    const Capabilities& can = comm.capabilities();
    EXPECT_EQ(can.backend, "peer");
    EXPECT_EQ(can.device, comm.device());
    EXPECT_TRUE(can.rank_order && can.deterministic && can.float32_accumulation);
    EXPECT_TRUE(can.stream_ordered);
    EXPECT_EQ(comm.host_capabilities().backend, "local");
  });
}

// Of numbers whose reduction depends on the order in which they are taken, and on where it is
// rounded.
at::Tensor uneven(Communicator& comm, at::Device device, int64_t count, at::ScalarType dtype,
                  ReduceOp op) {
  const at::Tensor values = at::arange(count).add(1).to(at::kFloat).reciprocal();
  const at::Tensor mine = values.mul(comm.rank() * 1e3 + 0.3).to(dtype).to(device);
  comm.all_reduce(mine, op);
  return mine.cpu();
}

TEST_F(PeerOnFakeCuda, TheBitsAreThoseOfTheHostHoweverTheWorkIsDivided) {
  constexpr int kRanks = 3;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin}) {
      at::Tensor expected;
      run_threads(kRanks, [&](Communicator& comm) {
        const at::Tensor sum = uneven(comm, at::kCPU, 3001, dtype, op);
        if (comm.rank() == 0) expected = sum;
      });
      for (const PeerSizes sizes :
           {PeerSizes{.slot_bytes = 1 << 20, .whole_up_to = 1 << 20},
            PeerSizes{.slot_bytes = 1 << 20, .whole_up_to = 0}, kFewPeerBytes}) {
        run_on_peer(kRanks,
                    [&](Communicator& comm) {
                      EXPECT_TRUE(at::equal(uneven(comm, comm.device(), 3001, dtype, op), expected))
                          << dtype_name(dtype) << " " << to_string(op) << " " << sizes.slot_bytes
                          << " " << sizes.whole_up_to << ", rank " << comm.rank();
                    },
                    {.peer_sizes = sizes});
      }
    }
  }
}

TEST_F(PeerOnFakeCuda, TwoRunsHaveTheSameBits) {
  std::vector<at::Tensor> sums;
  for (int turn = 0; turn < 2; ++turn) {
    Mutex mutex;
    run_on_peer(4, [&](Communicator& comm) {
      const at::Tensor sum = uneven(comm, comm.device(), 5000, at::kFloat, ReduceOp::kSum);
      const MutexLock lock(mutex);
      sums.push_back(sum);
    });
  }
  for (const at::Tensor& sum : sums) EXPECT_TRUE(at::equal(sum, sums[0]));
}

// They are read where they lie: only the sums are copied. Also where some ranks' are not symmetric,
// or lie elsewhere in their memory.
TEST_F(PeerOnFakeCuda, SymmetricTensorsAreNotCopiedIn) {
  constexpr int kRanks = 3;
  for (const bool all : {true, false}) {
    std::barrier together(kRanks);
    std::optional<FakeCudaCounts> before;
    run_on_peer(kRanks,
                [&](Communicator& comm) {
                  at::Tensor memory = comm.symmetric_empty({4000}, at::kFloat);
                  EXPECT_EQ(memory.device(), comm.device());
                  const bool own = all || comm.rank() != 1;
                  const int64_t at = all ? 500 : 1000 * comm.rank();
                  const at::Tensor value =
                      own ? memory.narrow(0, at, 2000) : at::full({2000}, 0.0, comm.device());
                  if (!own) memory = at::Tensor();  // the others keep theirs
                  value.fill_(comm.rank() + 1.0);
                  together.arrive_and_wait();
                  if (comm.rank() == 0) before = cuda.counts();
                  together.arrive_and_wait();
                  comm.all_reduce(value);
                  together.arrive_and_wait();
                  if (comm.rank() == 0) {
                    EXPECT_EQ((cuda.counts() - *before).copies, kRanks * kRanks + (all ? 0 : 1));
                  }
                  together.arrive_and_wait();
                  value.add_(1);
                  EXPECT_EQ(value.cpu().eq(7).sum().item<int64_t>(), 2000);
                  comm.barrier();
                },
                {.peer_sizes = {.slot_bytes = 1 << 16, .whole_up_to = 0}});
  }
}

// Two ranks that meet, with slots of so many bytes.
struct MetRanks {
  explicit MetRanks(const std::array<int64_t, 2>& slot_bytes) {
    std::vector<std::thread> threads;
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      threads.emplace_back([&, rank] {
        const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
        try {
          blocks[rank] = peer::Blocks::meet(*hosts[rank], device, static_cast<int>(rank), 2,
                                            slot_bytes[rank], Deadline::seconds(60));
        } catch (const LaunchError& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Backend>> hosts = make_local_backends(2);
  std::array<std::unique_ptr<peer::Blocks>, 2> blocks;
  std::array<std::string, 2> errors;
};

// A device waits for what such a rank's never gives; one that is through has given everything.
TEST_F(PeerOnFakeCuda, ARankIsLostThatGoesBeforeItsDeviceIsThrough) {
  for (const bool is_through : {false, true}) {
    const MetRanks ranks({1024, 1024});
    ASSERT_TRUE(ranks.blocks[0] && ranks.blocks[1]) << ranks.errors[0] << ranks.errors[1];
    EXPECT_EQ(ranks.blocks[0]->lost_rank(*ranks.hosts[0]), std::nullopt);
    if (is_through) ranks.blocks[1]->leave();
    ranks.hosts[1]->close();
    EXPECT_EQ(ranks.blocks[0]->lost_rank(*ranks.hosts[0]),
              is_through ? std::nullopt : std::optional<int>(1));
  }
}

TEST_F(PeerOnFakeCuda, ARankThatCannotShareItsMemoryIsNamedOnAll) {
  const MetRanks ranks({1024, int64_t{1} << 40});
  for (const std::string& error : ranks.errors) {
    EXPECT_THAT(error, ::testing::AllOf(
                           ::testing::StartsWith("backend peer: rank 1 cannot share its device's"),
                           ::testing::HasSubstr("(cudaMalloc: out of memory)"),
                           ::testing::HasSubstr("nccl does without"),
                           ::testing::Not(::testing::HasSubstr("\n"))));
  }
}

TEST_F(PeerOnFakeCuda, DevicesThatDoNotReachEachOtherAreNamed) {
  cuda.set_peer_access(false);
  const MetRanks ranks({1024, 1024});
  cuda.set_peer_access(true);
  EXPECT_THAT(ranks.errors[0], ::testing::HasSubstr("(cuda:0 cannot reach the memory of cuda:1)"));
  EXPECT_THAT(ranks.errors[1], ::testing::HasSubstr("(cuda:1 cannot reach the memory of cuda:0)"));
}

// What one rank sends takes a window, what another one sends takes several.
TEST_F(PeerOnFakeCuda, AllToAllTakesAsManyWindowsAsTheRankWithTheMost) {
  constexpr int kRanks = 3;
  const auto count = [](int from, int to) { return int64_t{from == 1 && to == 2 ? 3000 : from}; };
  run_on_peer(kRanks,
              [&](Communicator& comm) {
                const int rank = comm.rank();
                std::vector<int64_t> sends;
                std::vector<at::Tensor> parts, expected;
                for (int r = 0; r < kRanks; ++r) {
                  sends.push_back(count(rank, r));
                  parts.push_back(at::arange(count(rank, r)).add(1000 * rank + 10 * r));
                  expected.push_back(at::arange(count(r, rank)).add(1000 * r + 10 * rank));
                }
                for (int turn = 0; turn < 2; ++turn) {
                  const at::Tensor received =
                      comm.all_to_allv(at::cat(parts).to(comm.device()), sends);
                  EXPECT_TRUE(at::equal(received.cpu(), at::cat(expected))) << "rank " << rank;
                }
              },
              {.peer_sizes = kFewPeerBytes});
}

// Every bit is the host's: of what is no number, of zeros with a sign, of what is infinite.
TEST_F(PeerOnFakeCuda, ReducesWhatIsNoNumberAsTheHostDoes) {
  constexpr int kRanks = 2;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<std::vector<double>> of_rank{{nan, 1, -0.0, 0.0, -0.0, inf, inf, -inf},
                                                 {1, nan, 0.0, -0.0, -0.0, -inf, inf, nan}};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto reduced = [&](Communicator& comm, at::Device device) {
        const auto& mine = of_rank[static_cast<size_t>(comm.rank())];
        const at::Tensor value = at::empty({int64_t{8}}, at::kDouble);
        std::copy(mine.begin(), mine.end(), value.mutable_data_ptr<double>());
        const at::Tensor there = value.to(dtype).to(device);
        comm.all_reduce(there, op);
        return there.cpu().to(at::kDouble);  // exact, and has the sign of a zero
      };
      at::Tensor expected;
      run_threads(kRanks, [&](Communicator& comm) {
        const at::Tensor value = reduced(comm, at::kCPU);
        if (comm.rank() == 0) expected = value;
      });
      run_on_peer(kRanks, [&](Communicator& comm) {
        const at::Tensor value = reduced(comm, comm.device());
        EXPECT_TRUE(at::equal(value.isnan(), expected.isnan()) &&
                    at::equal(value.signbit().logical_or(value.isnan()),
                              expected.signbit().logical_or(expected.isnan())) &&
                    at::equal(value.nan_to_num(), expected.nan_to_num()))
            << dtype_name(dtype) << " " << to_string(op) << "\n"
            << value << "\n"
            << expected;
      });
    }
  }
}

// Memory that the others have open goes when all have closed it, whoever is first.
TEST_F(PeerOnFakeCuda, GroupsComeAndGo) {
  const auto used = [] {
    size_t bytes = 0;
    for (const int device : {0, 1, 2}) bytes += fake::machine().memory.used(device);
    return bytes;
  };
  at::Tensor outlives;
  const size_t before = used();
  run_on_peer(3,
              [&](Communicator& comm) {
                const at::Tensor symmetric = comm.symmetric_empty({10}, at::kFloat);
                if (comm.rank() == 2) outlives = symmetric;
                for (int turn = 0; turn < 3; ++turn) {
                  Communicator twin = comm.duplicate();
                  std::optional<Communicator> pair = comm.split(comm.rank() == 1 ? -1 : 0);
                  for (Communicator* one : {&twin, pair ? &*pair : nullptr}) {
                    if (one == nullptr) continue;
                    const at::Tensor value = at::full({10}, 1.0, comm.device());
                    one->all_reduce(value);
                    EXPECT_EQ(value.cpu()[9].item<double>(), one->size());
                  }
                }
              },
              {.peer_sizes = kFewPeerBytes});
  EXPECT_GT(used(), before);
  outlives = at::Tensor();
  EXPECT_EQ(used(), before);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
