// Memory and events of the devices, shared by processes.
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/autograd.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::testing {
namespace {

struct Handle {
  char bytes[64];
};

// What a program would find in the CUDA runtime.
struct Runtime {
  template <typename F>
  static void find(F& function, const char* name) {
    void* library = ::dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    function = reinterpret_cast<F>(::dlsym(library, name));
    ASSERT_NE(function, nullptr) << name;
  }
  Runtime() {
    find(allocate, "cudaMalloc");
    find(free, "cudaFree");
    find(export_memory, "cudaIpcGetMemHandle");
    find(open_memory, "cudaIpcOpenMemHandle");
    find(close_memory, "cudaIpcCloseMemHandle");
    find(create_event, "cudaEventCreateWithFlags");
    find(record, "cudaEventRecord");
    find(wait, "cudaStreamWaitEvent");
    find(synchronize, "cudaEventSynchronize");
    find(export_event, "cudaIpcGetEventHandle");
    find(open_event, "cudaIpcOpenEventHandle");
  }
  int (*allocate)(void**, size_t);
  int (*free)(void*);
  int (*export_memory)(Handle*, void*);
  int (*open_memory)(void**, Handle, unsigned);
  int (*close_memory)(void*);
  int (*create_event)(void**, unsigned);
  int (*record)(void*, void*);
  int (*wait)(void*, void*, unsigned);
  int (*synchronize)(void*);
  int (*export_event)(Handle*, void*);
  int (*open_event)(void**, Handle);
};

// Rank 0's handle, on all ranks.
Handle pass_on(Communicator& comm, const Handle& handle) {
  const at::Tensor bytes = torch::zeros({sizeof(Handle)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &handle, sizeof handle);
  comm.broadcast(bytes, 0);
  Handle result;
  std::memcpy(&result, bytes.const_data_ptr(), sizeof result);
  return result;
}

at::Tensor tensor_at(void* data) {
  return torch::from_blob(data, {1000},
                          at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kFloat));
}

TEST(FakeCudaProcesses, ShareMemoryAndEvents) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  expect_ranks(2, [](Communicator& comm) {
    FakeCuda& cuda = FakeCuda::install({.devices = 1});
    const Runtime runtime;
    constexpr unsigned kInterprocess = 4, kNoTiming = 2;
    void *data = nullptr, *event = nullptr;
    Handle memory{}, signal{};
    if (comm.rank() == 0) {
      ASSERT_EQ(runtime.allocate(&data, 4000), 0);
      ASSERT_EQ(runtime.create_event(&event, kInterprocess | kNoTiming), 0);
      ASSERT_EQ(runtime.export_memory(&memory, data), 0);
      ASSERT_EQ(runtime.export_event(&signal, event), 0);
      EXPECT_NE(runtime.open_memory(&data, memory, 1), 0) << "a process's own memory";
    }
    memory = pass_on(comm, memory);
    signal = pass_on(comm, signal);
    if (comm.rank() == 1) {
      ASSERT_EQ(runtime.open_memory(&data, memory, 1), 0);
      ASSERT_EQ(runtime.open_event(&event, signal), 0);
    }
    const at::Tensor shared = tensor_at(data);
    if (comm.rank() == 0) {
      shared.fill_(2);
      ASSERT_EQ(runtime.record(event, nullptr), 0);
    }
    comm.barrier();  // it is recorded
    ASSERT_EQ(runtime.wait(nullptr, event, 0), 0);
    EXPECT_EQ(shared.sum().item<float>(), 2000);
    comm.barrier();  // both have read
    if (comm.rank() == 1) {
      shared.mul_(3);
      ASSERT_EQ(runtime.record(event, nullptr), 0);
    }
    comm.barrier();
    ASSERT_EQ(runtime.synchronize(event), 0);
    EXPECT_EQ(shared.sum().item<float>(), 6000);
    comm.barrier();
    EXPECT_EQ(comm.rank() == 0 ? runtime.free(data) : runtime.close_memory(data), 0);
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  });
}

// Tensors of a device over the engines of the host, and by peer, as init() makes them.
class StagedProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  }
  // fn(comm) in three ranks that share two devices; rank 1 may end as `end` says.
  static void run(const std::function<void(Communicator& comm)>& fn, int end = 0,
                  std::chrono::nanoseconds timeout = std::chrono::seconds(30)) {
    expect_lone_ranks(3,
                      [&] {
                        FakeCuda& cuda = FakeCuda::install({.devices = 2});
                        {
                          Communicator comm =
                              init({.backend = GetParam(), .timeout = timeout, .device = "cuda"});
                          EXPECT_EQ(comm.device(), at::Device(at::kCUDA, comm.rank() == 1 ? 1 : 0));
                          fn(comm);
                        }
                        for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
                      },
                      {{1, end}});
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, StagedProcesses, ::testing::Values("shm", "tcp", "gloo", "peer"),
                         [](const auto& info) { return std::string(info.param); });

// Values that floats hold, and sums that depend on their order.
at::Tensor thirds(Communicator& comm, const at::Device& device) {
  return torch::arange(1, 2'000'001).reciprocal().mul(comm.rank() + 0.3).to(device);
}

TEST_P(StagedProcesses, HaveTheBitsOfTheHost) {
  run([](Communicator& comm) {
    const at::Tensor there = thirds(comm, comm.device());
    comm.all_reduce(there);
    const std::string host = GetParam() == std::string("peer") ? "shm" : GetParam();
    Communicator on_host = init({.backend = host, .device = "cpu"});
    const at::Tensor here = thirds(comm, at::kCPU);
    on_host.all_reduce(here);
    EXPECT_TRUE(torch::equal(there.cpu(), here));
    const at::Tensor symmetric = comm.symmetric_empty({2'000'000}, at::kFloat);
    symmetric.copy_(thirds(comm, comm.device()));
    comm.all_reduce(symmetric);
    EXPECT_TRUE(torch::equal(symmetric.cpu(), here));

    const at::Tensor all = comm.all_gather(torch::full({100'000}, comm.rank(), comm.device()));
    EXPECT_EQ(all.sum().item<int64_t>(), 300'000);
    const at::Tensor passed = torch::full({1000}, comm.rank() + 5.0, comm.device());
    const at::Tensor got = torch::zeros({1000}, comm.device());
    Work received = comm.irecv(got, (comm.rank() + 2) % 3);
    comm.send(passed, (comm.rank() + 1) % 3);
    received.wait();
    EXPECT_EQ(got.cpu()[999].item<double>(), (comm.rank() + 2) % 3 + 5.0);
    Communicator pair = *comm.split(comm.rank() == 2 ? 1 : 0);
    const at::Tensor one = torch::ones({10}, comm.device());
    pair.all_reduce(one);
    EXPECT_EQ(one.cpu()[9].item<float>(), comm.rank() == 2 ? 1 : 2);
    comm.barrier();
  });
}

TEST(PeerProcesses, TheOperationSuite) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  expect_lone_ranks(3, [] {
    FakeCuda& cuda = FakeCuda::install({.devices = 2});
    {
      Communicator comm = init({.backend = "peer", .device = "cuda"});
      const SuiteReport report = run_operation_suite(comm, {.dtypes = {at::kFloat, at::kBFloat16},
                                                            .sizes = {13},
                                                            .long_bytes = 400'000,
                                                            .every_root = false,
                                                            .device = comm.device()});
      for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
      EXPECT_GT(report.checked, 100);
    }
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  });
}

// Remote calls: values, and gradients, which come back by the map of the call.
TEST(RemoteCallProcesses, CarryTensorsOfDevices) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  expect_lone_ranks(2, [] {
    FakeCuda& cuda = FakeCuda::install({.devices = 2});
    {
      Communicator comm = init({.backend = "shm", .device = "cuda"});
      const at::Device here = comm.device(), there(at::kCUDA, comm.rank() == 0 ? 1 : 0);
      rpc::AgentOptions options;
      options.set_device_map("worker" + std::to_string(1 - comm.rank()), {{here, there}});
      rpc::Registry registry;
      registry.add("square", [here](const at::Tensor& x) {
        if (x.device() != here) throw InvalidArgument("it is on " + x.device().str());
        return x * x;
      });
      rpc::Agent agent = rpc::init(comm, std::move(registry), std::move(options));
      if (comm.rank() == 0) {
        const at::Tensor x = torch::arange(500'000, here).to(at::kFloat).sin();
        const at::Tensor scale = torch::full({}, 2.F, here).requires_grad_();
        const int64_t before = cuda.counts().stops();
        rpc::AutogradContext context(agent);
        const auto y = agent.rpc_sync<at::Tensor>("worker1", "square", x * scale);
        context.backward({y.sum()});
        EXPECT_EQ(cuda.counts().stops(), before);
        EXPECT_EQ(y.device(), here);
        EXPECT_TRUE(torch::equal(y.cpu(), (x * 2).square().cpu()));
        const at::Tensor same = torch::full({}, 2.F).requires_grad_();
        (x.cpu() * same).square().sum().backward();
        EXPECT_TRUE(torch::equal(context.gradient_of(scale).cpu(), same.grad()));
      }
      agent.shutdown();
    }
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  });
}

TEST_P(StagedProcesses, NameARankThatIsKilled) {
  run(
      [](Communicator& comm) {
        const at::Tensor value = torch::ones({300'000}, comm.device());
        comm.all_reduce(value);
        if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
        const auto start = std::chrono::steady_clock::now();
        try {
          while (true) comm.all_reduce(value);
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 1) << error.what();
          EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce sum float32 x 300000 at "));
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
      },
      SIGKILL);
}

TEST_P(StagedProcesses, NameARankThatIsStopped) {
  run(
      [](Communicator& comm) {
        const at::Tensor value = torch::ones({300'000}, comm.device());
        comm.all_reduce(value);
        if (comm.rank() == 1) ::raise(SIGSTOP);
        try {
          while (true) comm.all_reduce(value);
        } catch (const LateRank& error) {
          EXPECT_EQ(error.rank(), 1) << error.what();
          EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce sum float32 x 300000 at "));
        }
      },
      SIGSTOP, std::chrono::seconds(2));
}

}  // namespace
}  // namespace lockstep::inline v0::testing
