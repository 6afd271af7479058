// init() and the rank's device, on fake CUDA devices.
#include "lockstep/comm/init.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/device/current.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::device::init_mp_test {
namespace {

using testing::FakeCuda;
using ::testing::HasSubstr;

at::Device cuda(int number) {
  return {at::kCUDA, static_cast<at::DeviceIndex>(number)};
}

std::string refusal(const InitOptions& options) {
  try {
    init(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

class InitOnFakeDevices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  }
  // Runs `fn` in three ranks, each a process that sees this many devices.
  static void run(const std::function<void(FakeCuda& fake, Communicator& comm)>& fn) {
    testing::expect_ranks(3, [&](Communicator& comm) {
      FakeCuda& fake = FakeCuda::install({.devices = GetParam()});
      fn(fake, comm);
      for (const testing::Race& race : fake.take_races()) ADD_FAILURE() << race.text();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, InitOnFakeDevices, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(InitOnFakeDevices, SharesThemOut) {
  run([](FakeCuda&, Communicator& first) {
    EXPECT_EQ(first.device(), at::Device(at::kCPU)) << "nobody asked for another one";
    EXPECT_EQ(current(at::kCUDA), cuda(0));
    Communicator comm = init({.backend = "shm", .device = "cuda"});
    const at::Device own = cuda(comm.local_rank() % GetParam());
    EXPECT_EQ(comm.device(), own);
    EXPECT_EQ(comm.capabilities().device, own);
    EXPECT_EQ(comm.capabilities().backend, "staged:shm");
    EXPECT_EQ(current(at::kCUDA), own);
    const at::Tensor value = at::full({5}, 1.0 + comm.rank(), at::kCUDA);
    EXPECT_EQ(value.device(), own);
    comm.all_reduce(value);
    EXPECT_EQ(value.sum().item<double>(), 30);
    EXPECT_EQ(comm.split(comm.rank() % 2)->device(), own);
    EXPECT_EQ(comm.duplicate().device(), own);
  });
}

TEST_P(InitOnFakeDevices, PeerSharesThemOutUnasked) {
  run([](FakeCuda&, Communicator&) {
    Communicator comm = init({.backend = "peer"});
    const at::Device own = cuda(comm.local_rank() % GetParam());
    EXPECT_EQ(comm.capabilities().backend, "peer");
    EXPECT_EQ(comm.host_capabilities().backend, "shm");
    EXPECT_EQ(comm.device(), own);
    Communicator twin = comm.duplicate();
    Communicator part = *comm.split(comm.rank() % 2);  // also with a single rank
    for (Communicator* one : {&comm, &twin, &part}) {
      const at::Tensor value = at::full({5}, 1.0, own);
      one->all_reduce(value);
      EXPECT_EQ(value.sum().item<double>(), 5 * one->size());
      one->barrier();
    }
  });
}

TEST_P(InitOnFakeDevices, AsTheVariableSays) {
  run([](FakeCuda&, Communicator&) {
    ASSERT_EQ(::setenv("LOCKSTEP_DEVICE", "cuda:0", 1), 0);
    EXPECT_EQ(init({.backend = "shm"}).device(), cuda(0));
    const Communicator comm = init({.backend = "shm", .device = "auto"});
    EXPECT_EQ(comm.device(), cuda(comm.local_rank() % GetParam())) << "the option wins";
    EXPECT_EQ(init({.backend = "shm", .device = "cpu"}).device(), at::Device(at::kCPU));
    EXPECT_EQ(current(at::kCUDA), comm.device()) << "the CPU takes nothing away";
  });
}

TEST_P(InitOnFakeDevices, SaysWhatIsWrongBeforeTheRanksMeet) {
  run([](FakeCuda&, Communicator& comm) {
    // A single rank would wait for the others.
    if (comm.rank() != 1) return;
    EXPECT_THAT(refusal({.device = "cuda:4"}),
                HasSubstr("option device 'cuda:4': this process sees"));
    EXPECT_THAT(refusal({.device = "gpu"}), HasSubstr("option device 'gpu' is none"));
    EXPECT_THAT(refusal({.backend = "nccl", .device = "cpu"}),
                HasSubstr("backend nccl carries tensors of CUDA devices"));
    EXPECT_THAT(refusal({.backend = "peer", .device = "cpu"}),
                HasSubstr("backend peer carries tensors of CUDA devices"));
    ASSERT_EQ(::setenv("LOCKSTEP_DEVICE", "cuda:9", 1), 0);
    EXPECT_THAT(refusal({}), HasSubstr("LOCKSTEP_DEVICE 'cuda:9': this process sees"));
    EXPECT_EQ(current(at::kCUDA), cuda(0)) << "and leaves it as it was";
  });
}

// Ranks that are threads: each one has its own current device, and nccl uses the chosen one.
TEST(InitOnFakeNccl, TakesTheChosenDevice) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  testing::expect_lone_ranks(1, [] {
    FakeCuda& fake = FakeCuda::install({.devices = 2});
    std::string folder = std::filesystem::temp_directory_path() / "lockstep-device-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          const at::Device own = cuda(1 - rank);  // not the local rank's
          Communicator comm = init({.backend = "nccl",
                                    .init_method = "file://" + folder + "/store",
                                    .rank = rank,
                                    .world_size = 2,
                                    .timeout = std::chrono::seconds(60),
                                    .device = own.str()});
          EXPECT_EQ(comm.device(), own);
          EXPECT_EQ(comm.capabilities().device, own);
          const at::Tensor value = at::full({5}, 1.0 + rank, at::kCUDA);
          EXPECT_EQ(value.device(), own);
          comm.all_reduce(value);
          EXPECT_EQ(value.sum().item<double>(), 15);
          comm.barrier();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    std::filesystem::remove_all(folder);
    for (const testing::Race& race : fake.take_races()) ADD_FAILURE() << race.text();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::device::init_mp_test
