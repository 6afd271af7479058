// NCCL and the two functions of the CUDA runtime that it needs, loaded at run time: no CUDA toolkit
// and no nccl.h is needed to build, and one binary runs with and without them. Not a public header.
//
// The declarations are NCCL 2's binary interface, which its releases keep; nccl_library_test.cpp
// compares them with nccl.h where there is one.
#pragma once

#include <c10/core/Stream.h>

#include <climits>
#include <cstddef>
#include <string>

namespace lockstep::inline v0::nccl {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

struct UniqueId {
  char bytes[128];
};

// The first fields of ncclConfig_t, as in version 2.14; NCCL reads as much as `size` and `version`
// say.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  // calls return ncclInProgress instead of waiting for peers
};

enum Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
enum Datatype : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum Operator : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

struct Functions {
  Result (*get_version)(int*);
  const char* (*error_string)(Result);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm*, int, UniqueId, int, Config*);
  Result (*comm_get_async_error)(Comm, Result*);
  Result (*comm_abort)(Comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*broadcast)(const void*, void*, size_t, Datatype, int, Comm, Stream);
  Result (*reduce)(const void*, void*, size_t, Datatype, Operator, int, Comm, Stream);
  Result (*all_reduce)(const void*, void*, size_t, Datatype, Operator, Comm, Stream);
  Result (*all_gather)(const void*, void*, size_t, Datatype, Comm, Stream);
  Result (*reduce_scatter)(const void*, void*, size_t, Datatype, Operator, Comm, Stream);
  Result (*send)(const void*, size_t, Datatype, int, Comm, Stream);
  Result (*recv)(void*, size_t, Datatype, int, Comm, Stream);
};

// Functions of the CUDA runtime; 0 is success.
struct Runtime {
  int (*stream_create_with_flags)(Stream*, unsigned);
  int (*stream_destroy)(Stream);
};
inline constexpr unsigned kNonBlocking = 1;  // does not wait for the default stream

// Wraps a CUDA stream that libtorch did not make, identified by its address.
inline c10::Stream as_stream(Stream stream, c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<int64_t>(stream));
}

// The libraries, loaded; never unloaded. Immutable after construction.
class Library {
 public:
  // Throws a one-line LaunchError if a library is missing, with where to get it, or is too old.
  explicit Library(const std::string& file = "libnccl.so.2");

  Functions call{};
  Runtime cuda{};
  int version() const { return version_; }  // 22809: 2.28.9

 private:
  int version_ = 0;
};

}  // namespace lockstep::inline v0::nccl
