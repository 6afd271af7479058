// Functions of the CUDA runtime, as programs find them in libcudart.so.13.
#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

using lockstep::testing::fake::IpcHandle;
using lockstep::testing::fake::RuntimeTable;

extern "C" {

const RuntimeTable* lockstep_fake_cudart = nullptr;  // FakeCuda's

const char* cudaGetErrorString(int result) {
  switch (result) {
    case 0:
      return "no error";
    case 1:
      return "invalid argument";
    case 2:
      return "out of memory";
    case 101:
      return "invalid device ordinal";
    case 400:
      return "invalid resource handle";
    case 600:
      return "device not ready";
    default:
      return "unknown error";
  }
}
// Every call says it itself.
int cudaGetLastError() {
  return 0;
}
int cudaGetDeviceCount(int* count) {
  return lockstep_fake_cudart->device_count(count);
}
int cudaGetDevice(int* device) {
  return lockstep_fake_cudart->get_device(device);
}
int cudaSetDevice(int device) {
  return lockstep_fake_cudart->set_device(device);
}

int cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  return lockstep_fake_cudart->can_access_peer(possible, device, peer);
}
int cudaDeviceEnablePeerAccess(int, unsigned) {
  return 0;
}

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return lockstep_fake_cudart->stream_create(stream);
}
int cudaStreamDestroy(void* stream) {
  return lockstep_fake_cudart->stream_destroy(stream);
}
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  return lockstep_fake_cudart->stream_wait(stream, event);
}

int cudaMalloc(void** data, size_t bytes) {
  return lockstep_fake_cudart->allocate(data, bytes);
}
int cudaFree(void* data) {
  return lockstep_fake_cudart->free(data);
}
// Between devices' memory alone.
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return lockstep_fake_cudart->copy(to, from, bytes, stream);
}
int cudaIpcGetMemHandle(IpcHandle* handle, void* data) {
  return lockstep_fake_cudart->export_memory(handle, data);
}
int cudaIpcOpenMemHandle(void** data, IpcHandle handle, unsigned) {
  return lockstep_fake_cudart->open_memory(data, handle);
}
int cudaIpcCloseMemHandle(void* data) {
  return lockstep_fake_cudart->close_memory(data);
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  constexpr unsigned kInterprocess = 4;
  return lockstep_fake_cudart->event_create(event, (flags & kInterprocess) != 0);
}
int cudaEventDestroy(void* event) {
  return lockstep_fake_cudart->event_destroy(event);
}
int cudaEventRecord(void* event, void* stream) {
  return lockstep_fake_cudart->event_record(event, stream);
}
int cudaEventQuery(void* event) {
  return lockstep_fake_cudart->event_query(event);
}
int cudaEventSynchronize(void* event) {
  return lockstep_fake_cudart->event_synchronize(event);
}
int cudaIpcGetEventHandle(IpcHandle* handle, void* event) {
  return lockstep_fake_cudart->export_event(handle, event);
}
int cudaIpcOpenEventHandle(void** event, IpcHandle handle) {
  return lockstep_fake_cudart->open_event(event, handle);
}

}  // extern "C"
