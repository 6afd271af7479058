// Memory and events of the devices, shared by processes.
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "lockstep/comm/communicator.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::testing {
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

}  // namespace
}  // namespace lockstep::testing
