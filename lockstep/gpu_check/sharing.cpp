// The part "device".
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>

#include <array>
#include <cstring>

#include "lockstep/core/errors.h"
#include "lockstep/device/current.h"
#include "lockstep/device/event.h"
#include "lockstep/device/generator_state.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/device/timer.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/gpu_check/ranks.h"

namespace lockstep::inline v0::gpu_check {
namespace {

void expect(bool condition, const char* what) {
  if (!condition) throw Error(what);
}

// Many times, since an order that is missing need not show.
void streams(const Rows& rows) {
  const c10::Device device = device::current(c10::kCUDA);
  const c10::Stream main = device::current_stream(device), side = device::side_stream(device);
  constexpr int kTimes = 20;
  const at::Tensor value = at::zeros({1 << 20}, at::TensorOptions(device).dtype(at::kFloat));
  for (int i = 0; i < kTimes; ++i) {
    device::order(main, side);
    {
      const c10::StreamGuard on_side(side);
      value.add_(1);
    }
    device::Event done(device);
    done.record(side);
    done.block(main);
    value.add_(1);
  }
  expect(value.eq(2 * kTimes).all().item<bool>(), "two streams in turns have lost additions");
  device::Event end(device);
  end.record();
  end.synchronize();
  expect(end.reached(), "an event that was waited for is not reached");
  rows.ok("two streams in turns, by events", std::to_string(2 * kTimes) + " additions, none lost");
}

void timers(const Rows& rows) {
  const c10::Device device = device::current(c10::kCUDA);
  const at::Tensor value = at::zeros({1 << 20}, at::TensorOptions(device).dtype(at::kFloat));
  device::DeviceTimer timer(device);
  timer.start();
  for (int i = 0; i < 100; ++i) value.add_(1);
  timer.stop();
  const double seconds = timer.wait();
  expect(seconds > 0, "100 additions took no time by the device's clock");
  rows.ok("timer", "an addition of 4 MiB takes " + three_digits(seconds * 1e4) + " us",
          {{"us", seconds * 1e4}});
}

void generators(const Rows& rows) {
  const c10::Device device = device::current(c10::kCUDA);
  const at::Tensor state = device::generator_state(device);
  const auto draw = [&] { return at::rand({1000}, at::TensorOptions(device)).cpu(); };
  const at::Tensor first = draw();
  expect(!draw().equal(first), "a generator draws the same twice");
  device::set_generator_state(device, state);
  expect(draw().equal(first), "a generator does not go on where it was put back to");
  rows.ok("generator", "goes on where it was put back to");
}

// Of the CUDA runtime: by what processes share memory and events.
struct Runtime {
  struct Handle {
    std::array<char, 64> bytes;
  };
  int (*allocate)(void**, size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*export_memory)(Handle*, void*) = nullptr;
  int (*open_memory)(void**, Handle, unsigned) = nullptr;
  int (*close_memory)(void*) = nullptr;
  int (*create_event)(void**, unsigned) = nullptr;
  int (*destroy_event)(void*) = nullptr;
  int (*record)(void*, void*) = nullptr;
  int (*wait)(void*, void*, unsigned) = nullptr;
  int (*export_event)(Handle*, void*) = nullptr;
  int (*open_event)(void**, Handle) = nullptr;
  int (*stream)(void**, unsigned) = nullptr;
  int (*destroy_stream)(void*) = nullptr;

  Runtime() {
    void* library = nullptr;
    for (const char* file : {"libcudart.so.13", "libcudart.so.12"}) {
      if (library == nullptr) library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) throw Error(std::string("no CUDA runtime: ") + ::dlerror());
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) throw Error(std::string("the CUDA runtime has no ") + name);
    };
    find(allocate, "cudaMalloc");
    find(free, "cudaFree");
    find(export_memory, "cudaIpcGetMemHandle");
    find(open_memory, "cudaIpcOpenMemHandle");
    find(close_memory, "cudaIpcCloseMemHandle");
    find(create_event, "cudaEventCreateWithFlags");
    find(destroy_event, "cudaEventDestroy");
    find(record, "cudaEventRecord");
    find(wait, "cudaStreamWaitEvent");
    find(export_event, "cudaIpcGetEventHandle");
    find(open_event, "cudaIpcOpenEventHandle");
    find(stream, "cudaStreamCreateWithFlags");
    find(destroy_stream, "cudaStreamDestroy");
  }
};

void succeed(int result, const char* call) {
  if (result != 0) throw Error(std::string(call) + " gives " + std::to_string(result));
}

// Rank 0's, on all ranks.
Runtime::Handle pass_on(Communicator& comm, const Runtime::Handle& handle) {
  const at::Tensor bytes = at::zeros({sizeof handle.bytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), handle.bytes.data(), sizeof handle.bytes);
  comm.broadcast(bytes, 0);
  Runtime::Handle result{};
  std::memcpy(result.bytes.data(), bytes.const_data_ptr(), sizeof result.bytes);
  return result;
}

}  // namespace

// Rank 0 fills memory again and again, rank 1 reads it; each waits for the other's event alone,
// recorded before the barrier, on a stream of its own.
void share_memory(Communicator& comm, const Options& options, const Rows& rows) {
  const Runtime runtime;
  const c10::Device device(c10::kCUDA, 0);  // whose memory it is, whatever the ranks' devices are
  const c10::DeviceGuard on_device(device);
  const bool owner = comm.rank() == 0;
  const int64_t elements = options.small ? 1000 : 16 << 20;
  constexpr unsigned kInterprocess = 4, kNoTiming = 2, kNonBlocking = 1, kLazyPeerAccess = 1;
  void *data = nullptr, *event = nullptr, *stream = nullptr;
  Runtime::Handle memory{}, signal{};
  if (owner) {
    succeed(runtime.allocate(&data, static_cast<size_t>(elements) * 4), "cudaMalloc");
    succeed(runtime.create_event(&event, kInterprocess | kNoTiming), "cudaEventCreateWithFlags");
    succeed(runtime.export_memory(&memory, data), "cudaIpcGetMemHandle");
    succeed(runtime.export_event(&signal, event), "cudaIpcGetEventHandle");
  }
  memory = pass_on(comm, memory);
  signal = pass_on(comm, signal);
  if (!owner) {
    succeed(runtime.open_memory(&data, memory, kLazyPeerAccess), "cudaIpcOpenMemHandle");
    succeed(runtime.open_event(&event, signal), "cudaIpcOpenEventHandle");
  }
  succeed(runtime.stream(&stream, kNonBlocking), "cudaStreamCreateWithFlags");
  // A stream that libtorch did not make is known by its address.
  const c10::Stream own(c10::Stream::UNSAFE, device, reinterpret_cast<int64_t>(stream));
  constexpr int kTimes = 10;
  int wrong = 0;
  {
    const c10::StreamGuard on_own(own);
    const at::Tensor shared =
        at::from_blob(data, {elements}, at::TensorOptions(device).dtype(at::kFloat));
    for (int i = 0; i < kTimes; ++i) {
      if (owner) {
        shared.fill_(i);
        succeed(runtime.record(event, stream), "cudaEventRecord");
      }
      comm.barrier();  // it is recorded, not over
      if (!owner) {
        succeed(runtime.wait(stream, event, 0), "cudaStreamWaitEvent");
        wrong += shared.eq(i).all().item<bool>() ? 0 : 1;
      }
      comm.barrier();  // it is read
    }
  }
  if (!owner) succeed(runtime.close_memory(data), "cudaIpcCloseMemHandle");
  comm.barrier();
  if (owner) succeed(runtime.free(data), "cudaFree");
  succeed(runtime.destroy_event(event), "cudaEventDestroy");
  succeed(runtime.destroy_stream(stream), "cudaStreamDestroy");
  if (wrong > 0)
    rows.failed(
        "memory and an event of another process",
        "read wrongly " + std::to_string(wrong) + " of " + std::to_string(kTimes) + " times");
  else
    rows.ok("memory and an event of another process",
            "read rightly " + std::to_string(kTimes) + " times");
}

void look_at_device(const Options& options, const Rows& rows) {
  rows.guard("streams", [&] { streams(rows); });
  rows.guard("timer", [&] { timers(rows); });
  rows.guard("generator", [&] { generators(rows); });
  JobSpec spec;
  spec.job = "share-memory";
  spec.engine = "shm";
  spec.name = "two processes";
  spec.deadline = std::chrono::seconds(15);
  on_ranks(options, rows, spec);
}

}  // namespace lockstep::inline v0::gpu_check
