#include "lockstep/testing/fake_cuda/internal/runtime.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/ipc_handle.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"
#include "lockstep/testing/fake_cuda/internal/runtime_events.h"

namespace lockstep::inline v0::testing::fake {
namespace {

enum CudaError : int {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaInvalidDevice = 101,
  kCudaInvalidHandle = 400,
  kCudaNotReady = 600,
};

// A stream that libtorch did not make, known by its address; it stays, since clocks remember it.
struct OwnStream {
  int device;
};

StreamSlot slot_of_native(void* stream) {
  // libtorch's own have small numbers.
  constexpr auto kLargest = uintptr_t{1} << 16;
  const auto id = reinterpret_cast<uintptr_t>(stream);
  const int device = id < kLargest ? current_device() : static_cast<OwnStream*>(stream)->device;
  return machine().timeline.slot(device, static_cast<int64_t>(id));
}

int set_device(int device) {
  if (device < 0 || device >= machine().options.devices) return kCudaInvalidDevice;
  set_current_device(device);
  return kCudaSuccess;
}

int create_stream(void** stream) {
  auto* made = new OwnStream{current_device()};
  machine().timeline.add_stream(made->device, reinterpret_cast<int64_t>(made));
  *stream = made;
  return kCudaSuccess;
}

int allocate(void** data, size_t bytes) {
  Machine& m = machine();
  const int device = current_device();
  const StreamSlot home = m.timeline.slot(device, 0);
  Block* block = m.memory.allocate(device, bytes, home, place_of("cudaMalloc", home));
  *data = block != nullptr ? block->data : nullptr;
  return block != nullptr ? kCudaSuccess : kCudaOutOfMemory;
}

// As CUDA, it waits first: for its device, and for those that may reach its memory.
int release(void* data, bool foreign) {
  Machine& m = machine();
  Block* block = m.memory.find(data);
  if (block == nullptr || block->data != data || block->foreign != foreign)
    return data == nullptr ? kCudaSuccess : kCudaInvalidValue;
  VectorClock all;
  for (int device = 0; device < m.options.devices; ++device) all.join(m.timeline.all_of(device));
  m.timeline.wait_for(all);
  m.timeline.waited(all);
  m.memory.free(block, all);
  return kCudaSuccess;
}

int copy_bytes(void* to, const void* from, size_t bytes, void* stream) {
  if (!machine().memory.owns(to) || !machine().memory.owns(from)) return kCudaInvalidValue;
  FakeCudaCounts counts;
  counts.operations = counts.copies = 1;
  count(counts);
  Launch launch("cudaMemcpyAsync", slot_of_native(stream));
  launch.reads(from, bytes);
  launch.writes(to, bytes);
  launch.start();
  std::memmove(to, from, bytes);
  return kCudaSuccess;
}

int export_memory(IpcHandle* handle, void* data) {
  const DeviceMemory& memory = machine().memory;
  const Block* block = memory.find(data);
  if (block == nullptr || block->foreign) return kCudaInvalidValue;
  *handle = to_handle({::getpid(), memory.file(), memory.offset_of(*block), block->bytes});
  return kCudaSuccess;
}

int open_memory(void** data, const IpcHandle& handle) {
  const SharedPlace place = from_handle(handle);
  const UniqueFd file = open_file(place);
  // CUDA refuses a process its own memory.
  if (place.process == ::getpid() || file.get() < 0) return kCudaInvalidHandle;
  Machine& m = machine();
  const int device = current_device();
  const StreamSlot home = m.timeline.slot(device, 0);
  Block* block = m.memory.adopt(device, file.get(), place.offset, place.bytes, home,
                                place_of("cudaIpcOpenMemHandle", home));
  if (block == nullptr) return kCudaOutOfMemory;
  *data = block->data;
  return kCudaSuccess;
}

int create_event(void** event, bool shared) {
  *event = shared ? make_shared_event() : new RuntimeEvent;
  return *event != nullptr ? kCudaSuccess : kCudaOutOfMemory;
}

int open_event(void** event, const IpcHandle& handle) {
  *event = open_shared_event(handle);
  return *event != nullptr ? kCudaSuccess : kCudaInvalidHandle;
}

int export_event(IpcHandle* handle, void* event) {
  const IpcHandle* own = static_cast<RuntimeEvent*>(event)->handle();
  if (own == nullptr) return kCudaInvalidHandle;
  *handle = *own;
  return kCudaSuccess;
}

const RuntimeTable kRuntimeTable{
    .device_count =
        [](int* count) {
          *count = machine().options.devices;
          return int{kCudaSuccess};
        },
    .get_device =
        [](int* device) {
          *device = current_device();
          return int{kCudaSuccess};
        },
    .set_device = &set_device,
    .can_access_peer =
        [](int* possible, int, int) {
          *possible = machine().peer_access ? 1 : 0;
          return int{kCudaSuccess};
        },
    .stream_create = &create_stream,
    .stream_destroy =
        [](void* stream) { return int{stream != nullptr ? kCudaSuccess : kCudaInvalidHandle}; },
    .stream_wait =
        [](void* stream, void* event) {
          static_cast<RuntimeEvent*>(event)->hold(slot_of_native(stream));
          return int{kCudaSuccess};
        },
    .allocate = &allocate,
    .free = [](void* data) { return release(data, false); },
    .copy = &copy_bytes,
    .export_memory = &export_memory,
    .open_memory = &open_memory,
    .close_memory = [](void* data) { return release(data, true); },
    .event_create = &create_event,
    .event_destroy =
        [](void* event) {
          delete static_cast<RuntimeEvent*>(event);
          return int{kCudaSuccess};
        },
    .event_record =
        [](void* event, void* stream) {
          static_cast<RuntimeEvent*>(event)->record(slot_of_native(stream));
          return int{kCudaSuccess};
        },
    .event_query =
        [](void* event) {
          return int{static_cast<RuntimeEvent*>(event)->query() ? kCudaSuccess : kCudaNotReady};
        },
    .event_synchronize =
        [](void* event) {
          static_cast<RuntimeEvent*>(event)->synchronize();
          return int{kCudaSuccess};
        },
    .export_event = &export_event,
    .open_event = &open_event,
};

}  // namespace

const RuntimeTable& runtime_table() {
  return kRuntimeTable;
}

}  // namespace lockstep::inline v0::testing::fake
