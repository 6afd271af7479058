#include "lockstep/comm/engines/nccl/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "lockstep/comm/backend/cuda_runtime.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::nccl {
namespace {

constexpr int kOldest = 21400;  // the first version with non-blocking communicators

template <typename F>
void load_nccl(F& target, void* library, const std::string& file, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr)
    throw LaunchError(file + " has no " + name + "; backend nccl needs NCCL 2.14 or newer");
  target = reinterpret_cast<F>(symbol);
}

}  // namespace

Library::Library(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw LaunchError("backend nccl needs NCCL, but " +
                      std::string(reason != nullptr ? reason : file + " cannot be loaded") +
                      "; it comes with a CUDA build of libtorch (scripts/quickstart --cuda), and "
                      "LOCKSTEP_NCCL names the file of another");
  }
  load_nccl(call.get_version, library, file, "ncclGetVersion");
  if (call.get_version(&version_) != kSuccess || version_ < kOldest) {
    throw LaunchError(file + " is NCCL " + std::to_string(version_) +
                      "; backend nccl needs 2.14 or newer");
  }
  load_nccl(call.error_string, library, file, "ncclGetErrorString");
  load_nccl(call.get_unique_id, library, file, "ncclGetUniqueId");
  load_nccl(call.comm_init_rank_config, library, file, "ncclCommInitRankConfig");
  load_nccl(call.comm_get_async_error, library, file, "ncclCommGetAsyncError");
  load_nccl(call.comm_abort, library, file, "ncclCommAbort");
  load_nccl(call.group_start, library, file, "ncclGroupStart");
  load_nccl(call.group_end, library, file, "ncclGroupEnd");
  load_nccl(call.broadcast, library, file, "ncclBroadcast");
  load_nccl(call.reduce, library, file, "ncclReduce");
  load_nccl(call.all_reduce, library, file, "ncclAllReduce");
  load_nccl(call.all_gather, library, file, "ncclAllGather");
  load_nccl(call.reduce_scatter, library, file, "ncclReduceScatter");
  load_nccl(call.send, library, file, "ncclSend");
  load_nccl(call.recv, library, file, "ncclRecv");

  void* runtime = open_cuda_runtime("backend nccl");
  load_nccl(cuda.stream_create_with_flags, runtime, "libcudart", "cudaStreamCreateWithFlags");
  load_nccl(cuda.stream_destroy, runtime, "libcudart", "cudaStreamDestroy");
}

}  // namespace lockstep::inline v0::nccl
