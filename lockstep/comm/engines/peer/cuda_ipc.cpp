#include "lockstep/comm/engines/peer/cuda_ipc.h"

#include <dlfcn.h>

#include "lockstep/comm/backend/cuda_runtime.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::peer {
namespace {

// The value in driver_types.h.
constexpr unsigned kNoTiming = 2;
constexpr unsigned kInterprocess = 4;
constexpr unsigned kLazyPeerAccess = 1;
constexpr int kNotReady = 600;
constexpr int kPeerAccessAlready = 704;

template <typename F>
void find(F& target, void* library, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr)
    throw LaunchError(std::string("backend peer: the CUDA runtime has no ") + name +
                      "; it needs that of CUDA 12 or 13");
  target = reinterpret_cast<F>(symbol);
}

}  // namespace

CudaIpc::CudaIpc() {
  void* library = open_cuda_runtime("backend peer");
  find(call_.error_text, library, "cudaGetErrorString");
  find(call_.last_error, library, "cudaGetLastError");
  find(call_.get_device, library, "cudaGetDevice");
  find(call_.allocate, library, "cudaMalloc");
  find(call_.free, library, "cudaFree");
  find(call_.get_memory, library, "cudaIpcGetMemHandle");
  find(call_.open_memory, library, "cudaIpcOpenMemHandle");
  find(call_.close_memory, library, "cudaIpcCloseMemHandle");
  find(call_.can_reach, library, "cudaDeviceCanAccessPeer");
  find(call_.reach, library, "cudaDeviceEnablePeerAccess");
  find(call_.make_event, library, "cudaEventCreateWithFlags");
  find(call_.destroy_event, library, "cudaEventDestroy");
  find(call_.record, library, "cudaEventRecord");
  find(call_.wait, library, "cudaStreamWaitEvent");
  find(call_.query, library, "cudaEventQuery");
  find(call_.get_event, library, "cudaIpcGetEventHandle");
  find(call_.open_event, library, "cudaIpcOpenEventHandle");
}

void CudaIpc::check(int result, const char* what) const {
  if (result == 0) return;
  call_.last_error();  // clears the error, which libtorch's next kernel would otherwise report
  throw LaunchError(std::string(what) + ": " + call_.error_text(result));
}

// The error has no remedy, and libtorch's next kernel would report it.
void CudaIpc::forget(int result) const noexcept {
  if (result != 0) call_.last_error();
}

std::byte* CudaIpc::allocate(size_t bytes) const {
  void* data = nullptr;
  check(call_.allocate(&data, bytes), "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void CudaIpc::free(std::byte* data) const noexcept {
  forget(call_.free(data));
}

IpcHandle CudaIpc::handle_of(std::byte* data) const {
  IpcHandle handle{};
  check(call_.get_memory(&handle, data), "cudaIpcGetMemHandle");
  return handle;
}

std::byte* CudaIpc::open(const IpcHandle& handle) const {
  void* data = nullptr;
  check(call_.open_memory(&data, handle, kLazyPeerAccess), "cudaIpcOpenMemHandle");
  return static_cast<std::byte*>(data);
}

void CudaIpc::close(std::byte* data) const noexcept {
  forget(call_.close_memory(data));
}

void CudaIpc::reach(int device) const {
  int own = 0, possible = 0;
  check(call_.get_device(&own), "cudaGetDevice");
  if (device == own) return;
  check(call_.can_reach(&possible, own, device), "cudaDeviceCanAccessPeer");
  if (possible == 0)
    throw LaunchError("cuda:" + std::to_string(own) +
                      " cannot reach the memory of cuda:" + std::to_string(device));
  const int result = call_.reach(device, 0);
  if (result == kPeerAccessAlready)
    call_.last_error();
  else
    check(result, "cudaDeviceEnablePeerAccess");
}

CudaEvent CudaIpc::make_event(bool shared) const {
  CudaEvent event = nullptr;
  check(call_.make_event(&event, shared ? kNoTiming | kInterprocess : kNoTiming),
        "cudaEventCreateWithFlags");
  return event;
}

void CudaIpc::destroy(CudaEvent event) const noexcept {
  forget(call_.destroy_event(event));
}

IpcHandle CudaIpc::handle_of_event(CudaEvent event) const {
  IpcHandle handle{};
  check(call_.get_event(&handle, event), "cudaIpcGetEventHandle");
  return handle;
}

CudaEvent CudaIpc::open_event(const IpcHandle& handle) const {
  CudaEvent event = nullptr;
  check(call_.open_event(&event, handle), "cudaIpcOpenEventHandle");
  return event;
}

void CudaIpc::record(CudaEvent event, const c10::Stream& stream) const {
  check(call_.record(event, stream.native_handle()), "cudaEventRecord");
}

bool CudaIpc::reached(CudaEvent event) const {
  const int result = call_.query(event);
  if (result == kNotReady) {
    call_.last_error();
    return false;
  }
  check(result, "cudaEventQuery");
  return true;
}

void CudaIpc::wait(const c10::Stream& stream, CudaEvent event) const {
  check(call_.wait(stream.native_handle(), event, 0), "cudaStreamWaitEvent");
}

}  // namespace lockstep::inline v0::peer
