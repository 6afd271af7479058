// The engine staged, and what peer does alike, on devices that the host plays, ranks as threads:
// the values of the engine of the host, no races, no stop for a device, and that engine's errors.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/nccl/nccl_library.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// So that tensors of some hundred elements take several pieces, and wait for memory.
constexpr StagedSizes kFewBytes{.slot_bytes = 2048, .slots = 2};

class StagedOnFakeCuda : public WithoutRaces {};

class PipedOnFakeCuda : public WithoutRaces, public ::testing::WithParamInterface<const char*> {
 protected:
  template <typename Run>
  static void run_on_engine(int size, const Run& fn, StagedRanks ranks = {}) {
    ranks.peer = GetParam() == std::string("peer");
    if (ranks.peer && ranks.over_tcp) return;  // it is one host's
    run_on_staged(size, fn, ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, PipedOnFakeCuda, ::testing::Values("staged", "peer"),
                         [](const auto& info) { return std::string(info.param); });

SuiteOptions suite_on(const Communicator& comm) {
  // A slot holds 512 of float, and shares of 13 or 512 for every rank do not fit all.
  return {.dtypes = {at::kFloat, at::kBFloat16, at::kLong, at::kBool},
          .sizes = {0, 1, 13, 512},
          .long_bytes = 5003,
          .every_root = false,
          .device = comm.device()};
}

TEST_F(StagedOnFakeCuda, TheOperationSuiteInPieces) {
  for (const int size : {2, 4}) {
    expect_suite([&](const auto& fn) { run_on_staged(size, fn, {.sizes = kFewBytes}); }, suite_on);
  }
}

TEST_F(StagedOnFakeCuda, TheOperationSuiteOverTcp) {
  expect_suite([](const auto& fn) { run_on_staged(3, fn, {.over_tcp = true, .sizes = kFewBytes}); },
               suite_on);
}

TEST_F(StagedOnFakeCuda, RanksShareADevice) {
  expect_suite([](const auto& fn) { run_on_staged(2, fn, {.devices = 1}); }, suite_on);
}

// What `comm` makes of numbers whose sum depends on the order in which they are added.
at::Tensor uneven_sum(Communicator& comm, at::Device device, int64_t count) {
  const at::Tensor values = at::arange(count).add(1).to(at::kFloat).reciprocal();
  const at::Tensor mine = values.mul(comm.rank() * 1e4 + 0.3).to(device);
  comm.all_reduce(mine);
  return mine.cpu();
}

TEST_F(StagedOnFakeCuda, TheBitsAreThoseOfTheHost) {
  constexpr int kRanks = 3;
  for (const int64_t count : {7, 5000}) {
    at::Tensor expected;
    run_threads(kRanks, [&](Communicator& comm) {
      const at::Tensor sum = uneven_sum(comm, at::kCPU, count);
      if (comm.rank() == 0) expected = sum;
    });
    run_on_staged(kRanks,
                  [&](Communicator& comm) {
                    EXPECT_TRUE(at::equal(uneven_sum(comm, comm.device(), count), expected))
                        << count;
                  },
                  {.sizes = kFewBytes});
  }
}

// Nobody waits for a device: what the host waits for is the other ranks.
TEST_P(PipedOnFakeCuda, NoThreadStopsForADevice) {
  const FakeCudaCounts before = cuda.counts();
  std::vector<at::Tensor> kept(2);
  run_on_engine(2, [&](Communicator& comm) {
    const at::Tensor value = at::full({1000}, 1.0, comm.device());
    const at::Tensor other = at::full({1000}, 1.0, comm.device());
    for (int i = 0; i < 5; ++i) {
      Work work = comm.iall_reduce(other);
      comm.all_reduce(value);
      value.mul_(0.5);
      work.wait();
      other.mul_(0.5);
    }
    kept[static_cast<size_t>(comm.rank())] = value.add(other);
  });
  const FakeCudaCounts used = cuda.counts() - before;
  EXPECT_EQ(used.stops(), 0) << used.text();
  for (const at::Tensor& sum : kept) EXPECT_EQ(sum.sum().item<double>(), 2000);
}

TEST_P(PipedOnFakeCuda, AnUnfinishedOperationsMemoryMayBeLetGo) {
  run_on_engine(2, [](Communicator& comm) {
    for (int i = 0; i < 10; ++i) {
      const at::Tensor value = at::full({100}, 1.0 + i, comm.device());
      comm.all_reduce(value);
    }
    const at::Tensor unread = at::full({100}, 1.0, comm.device());
    comm.iall_reduce(unread).wait();
    comm.barrier();
  });
}

// What is under way moves while its rank computes.
TEST_P(PipedOnFakeCuda, AnExchangeNeedsNoCallOfItsRank) {
  std::barrier both(2);
  run_on_engine(2, [&](Communicator& comm) {
    const at::Tensor value = at::full({3000}, 1.0 + comm.rank(), comm.device());
    Work work = comm.iall_reduce(value);
    if (comm.rank() == 0) {
      both.arrive_and_wait();  // until rank 1 has its sum
    } else {
      work.wait();
      EXPECT_EQ(value.cpu()[2999].item<float>(), 3);
      both.arrive_and_wait();
    }
    work.wait();
  });
}

TEST_P(PipedOnFakeCuda, MessagesCrossAndComeByTag) {
  for (const bool over_tcp : {false, true}) {
    run_on_engine(2,
                  [](Communicator& comm) {
                    const int peer = 1 - comm.rank();
                    const at::Tensor first = at::full({600}, 1.0 + comm.rank(), comm.device());
                    const at::Tensor second = at::full({600}, 11.0 + comm.rank(), comm.device());
                    const at::Tensor in_first = at::zeros({600}, comm.device());
                    const at::Tensor in_second = at::zeros({600}, comm.device());
                    Work later = comm.irecv(in_second, peer, 2);
                    Work sooner = comm.irecv(in_first, peer, 1);
                    Work a = comm.isend(first, peer, 1), b = comm.isend(second, peer, 2);
                    later.wait();
                    sooner.wait();
                    a.wait();
                    b.wait();
                    EXPECT_EQ(in_first.cpu()[599].item<float>(), 1.0 + peer);
                    EXPECT_EQ(in_second.cpu()[0].item<float>(), 11.0 + peer);
                  },
                  {.over_tcp = over_tcp, .sizes = kFewBytes, .peer_sizes = kFewPeerBytes});
  }
}

TEST_P(PipedOnFakeCuda, ProbeFindsWhatNoReceiveHasClaimed) {
  run_on_engine(2,
                [](Communicator& comm) {
                  const at::Tensor value = at::full({5}, 1.0 + comm.rank(), comm.device());
                  const at::Tensor got = at::zeros({5}, comm.device());
                  if (comm.rank() == 1) {
                    comm.send(value, 0);
                    comm.send(value, 0);
                    return comm.recv(got, 0);
                  }
                  Work first = comm.irecv(got, 1);
                  const Deadline soon = Deadline::after(std::chrono::seconds(30));
                  while (comm.probe(1) != Probe::kMessage && !soon.expired()) {
                  }
                  first.wait();
                  comm.recv(got, 1);
                  EXPECT_EQ(comm.probe(1), Probe::kNothing);
                  EXPECT_EQ(got.cpu()[4].item<float>(), 2);
                  comm.send(value, 1);
                },
                {.alone = true});
}

// The faults that threads can have.
TEST_P(PipedOnFakeCuda, EveryRankGetsTheRightErrorInTime) {
  for (const Fault& fault : all_faults()) {
    if (fault.needs_process) continue;
    run_on_engine(kFaultSize,
                  [&](Communicator& comm) {
                    EXPECT_EQ(run_fault(comm, fault, {}), "")
                        << fault.name << ", rank " << comm.rank();
                  },
                  {.timeout = fault_timeout(fault), .alone = true});
  }
}

template <typename E, typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "no error of this kind";
}

TEST_P(PipedOnFakeCuda, DifferentCallsAreNamedBeforeAnythingIsMoved) {
  for (const bool over_tcp : {false, true}) {
    run_on_engine(
        2,
        [](Communicator& comm) {
          const at::Tensor value = at::ones({5000 + comm.rank()}, comm.device());
          const std::string error = error_of<Mismatch>([&] { comm.all_reduce(value); });
          EXPECT_THAT(error, AllOf(HasSubstr("all_reduce sum float32 x 5000 at staged_test.cpp"),
                                   HasSubstr("all_reduce sum float32 x 5001 at staged_test.cpp")));
          EXPECT_EQ(value.cpu()[0].item<float>(), 1);
        },
        {.over_tcp = over_tcp, .sizes = kFewBytes, .peer_sizes = kFewPeerBytes});
  }
}

TEST_P(PipedOnFakeCuda, ARankThatLeavesIsNamed) {
  for (const bool over_tcp : {false, true}) {
    run_on_engine(3,
                  [](Communicator& comm) {
                    const at::Tensor value = at::ones({3000}, comm.device());
                    comm.all_reduce(value);
                    if (comm.rank() == 1) return;
                    try {
                      comm.all_reduce(value);
                      ADD_FAILURE() << "no error";
                    } catch (const PeerLost& error) {
                      EXPECT_EQ(error.rank(), 1) << error.what();
                      EXPECT_THAT(error.what(),
                                  HasSubstr("#2 all_reduce sum float32 x 3000 at staged_test"));
                      EXPECT_THAT(error.what(), Not(HasSubstr("barrier")));
                    }
                  },
                  {.over_tcp = over_tcp, .sizes = kFewBytes, .peer_sizes = kFewPeerBytes});
  }
}

TEST_P(PipedOnFakeCuda, OppositeOrdersAreNamed) {
  run_on_engine(3, [](Communicator& comm) {
    Communicator a = comm.duplicate();
    std::optional<Communicator> b = comm.subgroup({0, 1});
    const at::Tensor five = at::ones({5}, comm.device()), three = at::ones({3}, comm.device());
    a.all_reduce(five);
    if (b) b->all_reduce(three);
    const std::string error = error_of<Mismatch>([&] {
      if (comm.rank() == 1) b->all_reduce(three);
      a.all_reduce(five);
      if (comm.rank() == 0) b->all_reduce(three);
    });
    comm.barrier();  // who has left a group is named otherwise
    EXPECT_THAT(error, AllOf(HasSubstr("ranks wait for each other in different groups"),
                             HasSubstr("is in #2 all_reduce sum float32 x 3"),
                             HasSubstr("is in #2 all_reduce sum float32 x 5")));
  });
}

TEST_P(PipedOnFakeCuda, AbortEndsAWait) {
  run_on_engine(2, [](Communicator& comm) {
    const at::Tensor value = at::ones({10}, comm.device());
    if (comm.rank() == 1) {
      EXPECT_THAT(error_of<PeerLost>([&] { comm.recv(value, 0); }), HasSubstr("had enough"));
      return;
    }
    Work work = comm.irecv(value, 1);
    std::thread watchdog([&] { comm.abort("had enough"); });
    EXPECT_THAT(error_of<PeerLost>([&] { work.wait(); }), HasSubstr("had enough"));
    watchdog.join();
  });
}

// A stream that waits for rank 1: what it is given comes later, and the host sees no end of it.
TEST_P(PipedOnFakeCuda, ADeviceThatIsLateHoldsItsCallAndNobodyElse) {
  const nccl::Library library;
  nccl::UniqueId id{};
  ASSERT_EQ(library.call.get_unique_id(&id), nccl::kSuccess);
  std::barrier both(2);
  const auto on_late_device = [&](Communicator& comm, const auto& fn) {
    nccl::Comm link = nullptr;
    nccl::Stream stream = nullptr;
    nccl::Config config;
    config.blocking = 1;
    ASSERT_EQ(library.call.comm_init_rank_config(&link, 2, id, comm.rank(), &config),
              nccl::kSuccess);
    ASSERT_EQ(library.cuda.stream_create_with_flags(&stream, nccl::kNonBlocking), 0);
    const at::Tensor late = at::full({4}, comm.rank() == 0 ? 0.0 : 7.0, comm.device());
    const at::Tensor sent = at::full({4}, 7.0, comm.device());
    torch::cuda::synchronize();
    const c10::StreamGuard guard(nccl::as_stream(stream, comm.device()));
    if (comm.rank() == 0)
      library.call.recv(late.mutable_data_ptr(), 4, nccl::kFloat32, 1, link, stream);
    fn(late);
    both.arrive_and_wait();
    if (comm.rank() == 1)
      library.call.send(sent.const_data_ptr(), 4, nccl::kFloat32, 0, link, stream);
    torch::cuda::synchronize();
    both.arrive_and_wait();
    library.call.comm_abort(link);
  };
  run_on_engine(2, [&](Communicator& comm) {
    at::Tensor sum;
    std::optional<Work> work;
    on_late_device(comm, [&](const at::Tensor& late) {
      sum = late;
      work = comm.iall_reduce(late);  // lets the host go
    });
    work->wait();
    EXPECT_EQ(sum.cpu()[3].item<float>(), 14);
  });
  library.call.get_unique_id(&id);
  run_on_engine(2,
                [&](Communicator& comm) {
                  on_late_device(comm, [&](const at::Tensor&) {
                    const std::string error = error_of<Error>([&] { comm.barrier(); });
                    if (comm.rank() == 0) {
                      EXPECT_THAT(error,
                                  AllOf(HasSubstr("#1 barrier at staged_test.cpp"),
                                        HasSubstr("waited 1 s for cuda:0, which is not through")));
                    }
                  });
                },
                {.timeout = std::chrono::seconds(1), .alone = true});
}

}  // namespace
}  // namespace lockstep::inline v0::testing
