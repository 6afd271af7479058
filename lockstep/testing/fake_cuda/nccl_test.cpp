// The engine nccl on devices that the host plays, over a NCCL that is really late.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/gtest_suite.h"

namespace lockstep::testing {
namespace {

class NcclOnFakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int device : {0, 1}) torch::cuda::synchronize(device);
    cuda.take_races();
  }
  void TearDown() override {
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  }

  FakeCuda& cuda = FakeCuda::install({.devices = 2});
};

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

TEST_F(NcclOnFakeCuda, TheOperationSuite) {
  expect_suite([](const auto& fn) { run_on_nccl(2, fn); },
               [](const Communicator&) {
                 return SuiteOptions{.dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong},
                                     .sizes = {0, 1, 13},
                                     .long_bytes = 3000,
                                     .every_root = false};
               });
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
}  // namespace lockstep::testing
