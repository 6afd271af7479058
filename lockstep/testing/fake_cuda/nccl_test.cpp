// The engine nccl on devices that the host plays, over a NCCL that is really late.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/nccl/nccl_library.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_suite.h"

namespace lockstep::inline v0::testing {
namespace {

class NcclOnFakeCuda : public WithoutRaces {};

TEST_F(NcclOnFakeCuda, CollectivesGiveTheirValues) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Device device = comm.device();
    const at::Tensor sum = at::full({5}, 1.0 + comm.rank(), device);
    comm.all_reduce(sum);
    EXPECT_EQ(sum.sum().item<double>(), 15);
    const at::Tensor sent = at::full({3}, 4.0 + comm.rank(), device);
    comm.broadcast(sent, 1);
    EXPECT_EQ(sent.sum().item<double>(), 15);
    const at::Tensor all = comm.all_gather(at::full({2}, 1.0 + comm.rank(), device));
    EXPECT_EQ(all.sum().item<double>(), 6);
    EXPECT_EQ(all[3].item<double>(), 2);
    const at::Tensor part = comm.reduce_scatter(at::full({4}, 1.0 + comm.rank(), device));
    EXPECT_EQ(part.sum().item<double>(), 6);
    const at::Tensor traded = comm.all_to_all(at::full({2}, 1.0 + comm.rank(), device));
    EXPECT_EQ(traded[0].item<double>(), 1);
    EXPECT_EQ(traded[1].item<double>(), 2);
  });
}

// NCCL's own functions, two ranks that are threads. `fn` has a communicator and a stream.
void on_two_ranks(const nccl::Library& library,
                  const std::function<void(int rank, nccl::Comm& comm, nccl::Stream stream)>& fn) {
  nccl::UniqueId id{};
  ASSERT_EQ(library.call.get_unique_id(&id), nccl::kSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::DeviceGuard guard({at::kCUDA, static_cast<at::DeviceIndex>(rank)});
      nccl::Comm comm = nullptr;
      nccl::Stream stream = nullptr;
      nccl::Config config;
      config.blocking = 1;
      ASSERT_EQ(library.call.comm_init_rank_config(&comm, 2, id, rank, &config), nccl::kSuccess);
      ASSERT_EQ(library.cuda.stream_create_with_flags(&stream, nccl::kNonBlocking), 0);
      fn(rank, comm, stream);
      if (comm != nullptr) library.call.comm_abort(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclOnFakeCuda, AMissingWaitBeforeACollectiveIsFound) {
  const nccl::Library library;
  on_two_ranks(library, [&](int, nccl::Comm& comm, nccl::Stream stream) {
    const at::Tensor value = at::full({4}, 1.0, at::kCUDA);
    void* data = value.mutable_data_ptr();
    // Nobody has told the stream to come after what fills the tensor.
    EXPECT_EQ(library.call.all_reduce(data, data, 4, nccl::kFloat32, nccl::kSum, comm, stream),
              nccl::kSuccess);
    torch::cuda::synchronize();
    EXPECT_EQ(value.sum().item<double>(), 8) << "luck";
  });
  const std::vector<Race> races = cuda.take_races();
  ASSERT_EQ(races.size(), 2u) << "one on each device";
  EXPECT_EQ(races[0].later.find("ncclAllReduce on cuda:"), 0u) << races[0].later;
  EXPECT_EQ(races[0].earlier.find("aten::fill_"), 0u) << races[0].earlier;
}

// What engine nccl has a stream for each direction for.
TEST_F(NcclOnFakeCuda, AReceiveThatWaitsKeepsWhatIsBehindItOnItsStream) {
  const nccl::Library library;
  std::barrier both(2);
  on_two_ranks(library, [&](int rank, nccl::Comm& comm, nccl::Stream stream) {
    const at::Tensor out = at::zeros({4}, at::kCUDA);
    const at::Tensor in = at::zeros({4}, at::kCUDA);
    torch::cuda::synchronize();
    library.call.recv(in.mutable_data_ptr(), 4, nccl::kFloat32, 1 - rank, comm, stream);
    library.call.send(out.const_data_ptr(), 4, nccl::kFloat32, 1 - rank, comm, stream);
    both.arrive_and_wait();
    c10::Event done(c10::DeviceType::CUDA);
    done.record(nccl::as_stream(stream, in.device()));
    for (int look = 0; look < 20; ++look) {
      EXPECT_FALSE(done.query());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    both.arrive_and_wait();
    library.call.comm_abort(std::exchange(comm, nullptr));
  });
}

TEST_F(NcclOnFakeCuda, TwoRanksOfADeviceAreRefused) {
  const nccl::Library library;
  nccl::UniqueId id{};
  library.call.get_unique_id(&id);
  nccl::Comm first = nullptr, second = nullptr;
  nccl::Config config;
  EXPECT_EQ(library.call.comm_init_rank_config(&first, 2, id, 0, &config), nccl::kInProgress);
  EXPECT_STREQ(
      library.call.error_string(library.call.comm_init_rank_config(&second, 2, id, 1, &config)),
      "invalid usage: Duplicate GPU detected, or another call that NCCL refuses");
  library.call.comm_abort(first);
  library.call.comm_abort(second);
}

TEST_F(NcclOnFakeCuda, TheOperationSuite) {
  expect_suite([](const auto& fn) { run_on_nccl(2, fn); },
               [](const Communicator& comm) {
                 return SuiteOptions{.dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong},
                                     .sizes = {0, 1, 13},
                                     .long_bytes = 3000,
                                     .every_root = false,
                                     .device = comm.device()};
               });
}

// The faults that threads can have, of tensors and barriers that nccl itself carries.
TEST_F(NcclOnFakeCuda, EveryRankGetsTheRightErrorInTime) {
  int tried = 0;
  for (const Fault& fault : all_faults()) {
    if (fault.needs_process) continue;
    ++tried;
    run_on_nccl(
        kFaultSize,
        [&](Communicator& comm) {
          EXPECT_EQ(run_fault(comm, fault, {}), "") << fault.name << ", rank " << comm.rank();
        },
        fault_timeout(fault), /*alone=*/true);
  }
  EXPECT_GE(tried, 10);
}

// The operation is late, and what follows it on the stream comes after it; the host does not wait.
TEST_F(NcclOnFakeCuda, AnOperationThatIsLateStopsNoHost) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Device device = comm.device();
    const at::Tensor value = at::full({1000}, 1.0, device);
    Counting counted;
    for (int i = 0; i < 5; ++i) {
      comm.all_reduce(value);
      value.mul_(0.5);
    }
    EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
    EXPECT_EQ(value.sum().item<double>(), 1000);
  });
}

TEST_F(NcclOnFakeCuda, AnUnfinishedOperationsMemoryMayBeLetGo) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Device device = comm.device();
    for (int i = 0; i < 10; ++i) {
      const at::Tensor value = at::full({100}, 1.0 + i, device);
      comm.all_reduce(value);
    }
    comm.barrier();
  });
}

TEST_F(NcclOnFakeCuda, MessagesInOrder) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Device device = comm.device();
    const at::Tensor value = at::full({10}, 3.0 + comm.rank(), device);
    const at::Tensor got = at::zeros({10}, device);
    if (comm.rank() == 0) {
      comm.send(value, 1);
      comm.recv(got, 1);
    } else {
      comm.recv(got, 0);
      comm.send(value, 0);
    }
    EXPECT_EQ(got.sum().item<double>(), comm.rank() == 0 ? 40 : 30);
  });
}

// A rank that has posted its receive first can send all the same.
TEST_F(NcclOnFakeCuda, AReceiveThatWaitsLetsSendsThrough) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Device device = comm.device();
    const at::Tensor value = at::full({10}, 3.0 + comm.rank(), device);
    const at::Tensor got = at::zeros({10}, device);
    if (comm.rank() == 0) {
      Work received = comm.irecv(got, 1);
      comm.isend(value, 1).wait();
      received.wait();
    } else {
      comm.recv(got, 0);
      comm.send(value, 0);
    }
    EXPECT_EQ(got.sum().item<double>(), comm.rank() == 0 ? 40 : 30);
  });
}

// Both directions at once, both receives first, many times.
TEST_F(NcclOnFakeCuda, MessagesCross) {
  run_on_nccl(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    const at::Tensor value = at::full({10}, 0.0, comm.device());
    const at::Tensor got = at::zeros({10}, comm.device());
    for (int i = 1; i <= 10; ++i) {
      value.fill_(10 * comm.rank() + i);
      Work received = comm.irecv(got, peer);
      Work sent = comm.isend(value, peer);
      received.wait();
      sent.wait();
      EXPECT_EQ(got[9].item<double>(), 10 * peer + i);
    }
  });
}

TEST_F(NcclOnFakeCuda, ARankSendsToItself) {
  run_on_nccl(2, [](Communicator& comm) {
    const at::Tensor value = at::full({10}, 3.0 + comm.rank(), comm.device());
    const at::Tensor got = at::zeros({10}, comm.device());
    Work received = comm.irecv(got, comm.rank());
    comm.send(value, comm.rank());
    received.wait();
    EXPECT_TRUE(at::equal(got, value));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing
