// A communicator over nccl has two engines: what it gives its device, and what it does not.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/nccl/nccl_group.h"
#include "lockstep/comm/groups/making.h"
#include "lockstep/comm/internal/engines.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/gtest_suite.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TwoEngines : public WithoutRaces {};

// Whether this thread's part of `fn` gave a device anything, or stopped for one.
template <typename Run>
void expect_no_device(const char* what, const Run& fn) {
  Counting counted;
  fn();
  const FakeCudaCounts counts = counted.counts();
  EXPECT_EQ(counts.operations + counts.allocations + counts.stops(), 0)
      << what << ": " << counts.text();
}

// A sum on both engines is right.
void expect_both(Communicator& comm, const char* what, const char* host = "local") {
  EXPECT_EQ(comm.capabilities().backend, "nccl") << what;
  EXPECT_EQ(comm.host_capabilities().backend, host) << what;
  for (const at::Device device : {at::Device(at::kCPU), comm.device()}) {
    const at::Tensor sum = at::full({3}, 1.0 + comm.rank(), device);
    comm.all_reduce(sum);
    EXPECT_EQ(sum[2].item<double>(), comm.size() * (comm.size() + 1) / 2) << what << device;
  }
}

TEST_F(TwoEngines, WhatTheHostHasNeverTouchesADevice) {
  run_on_nccl(2, [](Communicator& comm) {
    EXPECT_TRUE(comm.host_capabilities().device.is_cpu());
    const at::Tensor on_device = at::full({3}, 1.0, comm.device());
    comm.all_reduce(on_device);
    const int peer = 1 - comm.rank();
    expect_no_device("barrier", [&] { comm.barrier(); });
    expect_no_device("a control word", [&] {
      const at::Tensor word = at::full({1}, 1 + comm.rank(), at::kByte);
      comm.iall_reduce(word, ReduceOp::kBitOr).wait();
      EXPECT_EQ(word.item<int>(), 3);
    });
    expect_no_device("unequal parts",
                     [&] { EXPECT_EQ(comm.all_gatherv(at::zeros({2 + comm.rank()})).numel(), 5); });
    expect_no_device("objects", [&] {
      EXPECT_EQ(broadcast_object(comm, nlohmann::json(comm.rank()), 1), nlohmann::json(1));
    });
    expect_no_device("an agreement on a device's tensors",
                     [&] { check_same_on_all_ranks(comm, {{"one", on_device}}); });
    expect_no_device("a coalesced list", [&] {
      const std::vector<at::Tensor> list = {at::full({2}, 1.0), at::full({3}, 2.0)};
      all_reduce_coalesced(comm, list);
      EXPECT_EQ(list[1].sum().item<double>(), 12);
    });
    expect_no_device("messages", [&] {
      const at::Tensor got = at::zeros({2}), sent = at::full({2}, 5.0 + comm.rank());
      Work received = comm.irecv(got, peer);
      comm.send(sent, peer);
      received.wait();
      EXPECT_EQ(got[0].item<double>(), 5 + peer);
      EXPECT_EQ(comm.probe(peer), Probe::kNothing);
    });
    expect_no_device("shared memory", [&] {
      const at::Tensor shared = comm.shared_empty({2}, at::kFloat);
      shared[comm.rank()].fill_(1.0 + comm.rank());
      comm.barrier();
      EXPECT_EQ(shared.sum().item<double>(), 3);
      comm.barrier();
    });
    expect_no_device("a collective under way beside a device's", [&] {
      const at::Tensor word = at::full({1}, 1.0);
      Work work = comm.iall_reduce(word);
      EXPECT_GE(comm.stats().of(Op::kAllReduce).calls, 3u) << "of both engines";
      work.wait();
      EXPECT_EQ(word.item<double>(), 2);
    });
    EXPECT_EQ(comm.symmetric_empty({2}, at::kFloat).device(), comm.device());
  });
}

TEST_F(TwoEngines, TheOperationSuiteOfTheHostsTensors) {
  expect_suite(
      [](const auto& fn) {
        run_on_nccl(2, [&](Communicator& comm) { expect_no_device("suite", [&] { fn(comm); }); });
      },
      [](const Communicator&) {
        return SuiteOptions{.sizes = {0, 1, 13}, .long_bytes = 3000, .every_root = false};
      });
}

TEST_F(TwoEngines, AListMayBeOnBoth) {
  run_on_nccl(2, [](Communicator& comm) {
    std::vector<at::Tensor> list;
    for (const at::Device device : {at::Device(at::kCPU), comm.device()}) {
      for (const int64_t numel : {2, 3})
        list.push_back(at::full({numel}, 1.0 + comm.rank(), device));
    }
    all_reduce_coalesced(comm, list);
    for (const at::Tensor& tensor : list)
      EXPECT_EQ(tensor.sum().item<double>(), 3 * tensor.numel());
  });
}

// Ranks may wait for what they have called in both in any order.
TEST_F(TwoEngines, AWaitInOneMovesTheOther) {
  run_on_nccl(2, [](Communicator& comm) {
    for (int turn = 0; turn < 3; ++turn) {
      const at::Tensor host = at::full({1000}, 1.0);
      const at::Tensor device = at::full({1000}, 2.0, comm.device());
      Work of_host = comm.iall_reduce(host), of_device = comm.iall_reduce(device);
      if (comm.rank() == 0) of_host.wait();
      of_device.wait();
      of_host.wait();
      EXPECT_EQ(host[999].item<double>(), 2);
      EXPECT_EQ(device[999].item<double>(), 4);
    }
  });
}

TEST_F(TwoEngines, CallsInDifferentOrdersAreNamed) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Tensor device = at::full({5}, 1.0, comm.device());
    comm.barrier();
    comm.all_reduce(device);
    try {
      if (comm.rank() == 0) comm.all_reduce(at::full({6}, 1.0));
      comm.all_reduce(device);
      if (comm.rank() == 1) comm.all_reduce(at::full({6}, 1.0));
      ADD_FAILURE() << "no Mismatch";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("ranks wait for each other"),
                        HasSubstr("rank 0 is in #2 all_reduce sum float32 x 6"),
                        HasSubstr("on the host of the group of ranks 0, 1"),
                        HasSubstr("rank 1 is in #2 all_reduce sum float32 x 5"),
                        HasSubstr("two_engines_test.cpp"), HasSubstr("on cuda:1 of the group")));
    }
    EXPECT_THROW(comm.all_reduce(device), Mismatch);
    EXPECT_THROW(comm.barrier(), Mismatch);
  });
}

TEST_F(TwoEngines, WhatBreaksTheDevicesBreaksTheHosts) {
  std::latch broken(1);
  run_on_nccl(
      2,
      [&](Communicator& comm) {
        const std::string call = "all_reduce sum float32 x 7";
        if (comm.rank() == 0) {
          EXPECT_THROW(comm.all_reduce(at::full({7}, 1.0, comm.device())), Timeout);
          try {
            comm.barrier();
            ADD_FAILURE() << "a broken communicator took a call";
          } catch (const Timeout& error) {
            EXPECT_THAT(error.what(), AllOf(HasSubstr(call), HasSubstr("two_engines_test.cpp")));
          }
          broken.count_down();
          return;
        }
        broken.wait();
        try {
          comm.barrier();
          ADD_FAILURE() << "the other rank gave up";
        } catch (const Timeout& error) {
          EXPECT_THAT(error.what(), HasSubstr(call));
        }
      },
      std::chrono::seconds(1));
}

TEST_F(TwoEngines, WhatBreaksTheHostsBreaksTheDevices) {
  std::latch broken(1);
  run_on_nccl(
      2,
      [&](Communicator& comm) {
        const at::Tensor device = at::full({7}, 1.0, comm.device());
        if (comm.rank() == 0) {
          EXPECT_THROW(comm.barrier(), Timeout);
          EXPECT_THROW(comm.all_reduce(device), Timeout);
          broken.count_down();
          return;
        }
        broken.wait();
        try {
          comm.all_reduce(device);
          ADD_FAILURE() << "the other rank gave up";
        } catch (const Timeout& error) {
          EXPECT_THAT(error.what(), HasSubstr("barrier"));
        }
      },
      std::chrono::seconds(1));
}

TEST_F(TwoEngines, AbortReachesBoth) {
  std::latch aborted(1);
  run_on_nccl(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.abort("it has had enough");
      EXPECT_THROW(comm.barrier(), PeerLost);
      EXPECT_THROW(comm.all_reduce(at::zeros({1}, comm.device())), PeerLost);
      aborted.count_down();
      return;
    }
    try {
      comm.barrier();
      ADD_FAILURE() << "the other rank has left";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("it has had enough"));
    }
    aborted.wait();
    EXPECT_THROW(comm.all_reduce(at::zeros({1}, comm.device())), Error);
  });
}

TEST_F(TwoEngines, GroupsHaveBoth) {
  run_on_nccl(3, [](Communicator& comm) {
    expect_both(comm, "all");
    Communicator twin = comm.duplicate();
    expect_both(twin, "duplicate");
    std::optional<Communicator> part = comm.subgroup({2, 0});
    if (part) expect_both(*part, "subgroup");
    Communicator apart = *comm.split(comm.rank() == 1 ? 1 : 0);
    expect_both(apart, "split");
    if (comm.rank() == 1) return;  // and is lost
    Communicator left = comm.shrink(Deadline::seconds(60));
    EXPECT_EQ(left.size(), 2);
    expect_both(left, "shrink");
  });
}

// As init() has them made, on one host and on two.
TEST_F(TwoEngines, TheHostsIsTheOneOfAJobOnCpus) {
  for (const bool one_host : {true, false}) {
    const auto store = std::make_shared<HashStore>();
    const char* host = one_host ? "shm" : "tcp";
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const Topology place{rank, 2, one_host ? rank : 0, one_host ? 2 : 1, one_host ? 0 : rank};
        const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
        const EngineRequest request{.backend = "nccl",
                                    .topology = place,
                                    .job = place,
                                    .members = {0, 1},
                                    .device = device};
        auto origin = std::make_shared<GroupOrigin>(
            GroupOrigin{.maker = make_process_groups(request, store, nullptr),
                        .name = "all",
                        .members = request.members});
        try {
          Engines engines =
              origin->maker->make("all", place, request.members, Deadline::seconds(60));
          const c10::DeviceGuard guard(device);
          Communicator comm(std::move(engines.own), place, {.origin = std::move(origin)},
                            std::move(engines.host));
          expect_both(comm, "all", host);
          Communicator twin = comm.duplicate();
          expect_both(twin, "duplicate", host);
          comm.barrier();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : ranks) thread.join();
  }
}

TEST_F(TwoEngines, OtherDevicesAreRefusedInALine) {
  run_on_nccl(2, [](Communicator& comm) {
    try {
      comm.all_reduce(at::empty({2}, at::Device(at::kMeta)));
      ADD_FAILURE() << "no exception";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("of the host and of cuda devices, not "),
                                      HasSubstr("on meta"), Not(HasSubstr("\n"))));
    }
    comm.barrier();
  });
}

TEST_F(TwoEngines, SixteenBitTypesTravelAsTheyAre) {
  run_on_nccl(2, [](Communicator& comm) {
    int64_t operations = -1;
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      EXPECT_EQ(comm.support(Op::kAllReduce, dtype), Support::kNative);
      const at::Tensor value =
          at::full({5}, 1.5 + comm.rank(), at::TensorOptions(dtype).device(comm.device()));
      Counting counted;
      comm.all_reduce(value);
      if (operations < 0) operations = counted.operations();
      EXPECT_EQ(counted.operations(), operations) << "nothing is cast";
      EXPECT_EQ(value[4].item<double>(), 4);
    }
    EXPECT_FALSE(comm.capabilities().float32_accumulation);
  });
}

TEST_F(TwoEngines, ARankThatNeverComesIsNamed) {
  try {
    make_nccl_backend(std::make_shared<HashStore>(), {.rank = 0, .size = 3, .device = 0},
                      Deadline::seconds(0.3));
    ADD_FAILURE() << "nobody else was there";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("not arrived: rank 1, 2"));
  }
}

// The others do not wait for it until their deadline.
TEST_F(TwoEngines, ARankThatCannotComeIsHeardOf) {
  const auto store = std::make_shared<HashStore>();
  const auto connect = [&](int rank, int device) {
    return make_together(store, rank, [&](const std::shared_ptr<Store>& meeting) {
      return make_nccl_backend(meeting, {.rank = rank, .size = 2, .device = device},
                               Deadline::seconds(600));
    });
  };
  std::thread other([&] { EXPECT_THROW(connect(1, 99), LaunchError); });
  try {
    connect(0, 0);
    ADD_FAILURE() << "the other rank has no device";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("wants CUDA device 99"));
  }
  other.join();
}

TEST_F(TwoEngines, TheLibraryMayBeNamed) {
  ::setenv("LOCKSTEP_NCCL", "/nowhere/libnccl.so.2", 1);
  try {
    make_nccl_backend(std::make_shared<HashStore>(), {.rank = 0, .size = 1, .device = 0},
                      Deadline::seconds(10));
    ADD_FAILURE() << "there is no such file";
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("LOCKSTEP_NCCL"),
                                    Not(HasSubstr("\n"))));
  }
  ::unsetenv("LOCKSTEP_NCCL");
}

TEST(NcclGroup, ACallThatIsRefusedInsideIsNotForgotten) {
  nccl::Functions functions;
  functions.group_start = [] { return nccl::kSuccess; };
  functions.group_end = [] { return nccl::kInProgress; };
  nccl::Group good(functions);
  good.add(nccl::kSuccess);
  good.add(nccl::kInProgress);
  EXPECT_EQ(good.end(), nccl::kInProgress);
  nccl::Group bad(functions);
  bad.add(nccl::kInProgress);
  bad.add(nccl::kRemoteError);
  bad.add(nccl::kSuccess);
  EXPECT_EQ(bad.end(), nccl::kRemoteError);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
