// What libtorch asks of a device: guards, streams, events, memory, generators. Not a public header.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>

#include <string>

namespace torch {
class Library;
}

namespace lockstep::inline v0::testing::fake {

inline constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::CUDA);

// Each registers with libtorch; once, after the machine is there.
void register_guard();
void register_allocator();
void register_kernels();
// Of the kernels, those of attention.
void register_attention(torch::Library& own);
// libtorch asks for the hooks once, and keeps what it gets. Whether it got ours.
bool hooks_are_ours();

// The calling thread's.
int current_device();
// Its current stream of the device, by libtorch's number.
int64_t current_stream_id(int device);
void set_current_device(int device);

// Makes a device the current one for as long as this lives.
class DeviceNow {
 public:
  explicit DeviceNow(int device) : before_(current_device()) { set_current_device(device); }
  ~DeviceNow() { set_current_device(before_); }
  DeviceNow(const DeviceNow&) = delete;
  DeviceNow& operator=(const DeviceNow&) = delete;

 private:
  int before_;
};

// Memory that this thread asks for is made by the operation `name`, as reports will say; the
// outermost counts.
class MadeBy {
 public:
  explicit MadeBy(std::string name);
  ~MadeBy();
  MadeBy(const MadeBy&) = delete;
  MadeBy& operator=(const MadeBy&) = delete;
  static const std::string& now();

 private:
  std::string before_;
};

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

// The CPU's generator that a device's stands on. The default one where `generator` is undefined.
at::Generator host_generator(const at::Generator& generator, int device);
// A device's default generator.
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// Names a fault in device memory; once.
void catch_faults();

// NCCL and the CUDA runtime, for libraries that look for them with dlopen. Throw SystemError,
// LaunchError.
void load_libraries();

}  // namespace lockstep::inline v0::testing::fake
