// The functions of the CUDA runtime by which processes share a device's memory and order their
// streams. Not a public header.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <string>

namespace lockstep::inline v0::peer {

// cudaIpcMemHandle_t, cudaIpcEventHandle_t: the runtime's binary interface.
struct IpcHandle {
  char bytes[64];
};
using CudaEvent = void*;  // cudaEvent_t

// The runtime, never unloaded. Its functions are called with the device as the current one, and
// throw a one-line LaunchError that says what failed and why.
// Thread-safety: immutable after construction.
class CudaIpc {
 public:
  CudaIpc();  // throws LaunchError where there is no runtime

  std::byte* allocate(size_t bytes) const;
  void free(std::byte* data) const noexcept;
  IpcHandle handle_of(std::byte* data) const;
  std::byte* open(const IpcHandle& handle) const;  // memory of another process
  void close(std::byte* data) const noexcept;
  // Makes memory that this process's threads have on `device` reachable for operations of the
  // current device.
  void reach(int device) const;

  // Makes an event without times; `shared`: other processes can open it.
  CudaEvent make_event(bool shared) const;
  void destroy(CudaEvent event) const noexcept;
  IpcHandle handle_of_event(CudaEvent event) const;
  CudaEvent open_event(const IpcHandle& handle) const;
  void record(CudaEvent event, const c10::Stream& stream) const;
  void wait(const c10::Stream& stream, CudaEvent event) const;
  bool reached(CudaEvent event) const;  // never waits

 private:
  struct Functions {
    const char* (*error_text)(int);
    int (*last_error)();
    int (*get_device)(int*);
    int (*allocate)(void**, size_t);
    int (*free)(void*);
    int (*get_memory)(IpcHandle*, void*);
    int (*open_memory)(void**, IpcHandle, unsigned);
    int (*close_memory)(void*);
    int (*can_reach)(int*, int, int);
    int (*reach)(int, unsigned);
    int (*make_event)(CudaEvent*, unsigned);
    int (*destroy_event)(CudaEvent);
    int (*record)(CudaEvent, void*);
    int (*wait)(void*, CudaEvent, unsigned);
    int (*query)(CudaEvent);
    int (*get_event)(IpcHandle*, CudaEvent);
    int (*open_event)(CudaEvent*, IpcHandle);
  };
  void check(int result, const char* what) const;
  void forget(int result) const noexcept;

  Functions call_{};
};

}  // namespace lockstep::inline v0::peer
