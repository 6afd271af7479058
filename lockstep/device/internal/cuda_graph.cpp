// The only file that is compiled with CUDA's headers, which libtorch's header for CUDA graphs
// includes.
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "lockstep/device/internal/device_graph.h"

namespace lockstep::inline v0::device::internal {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void begin() override { graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal); }
  void end() override { graph_.capture_end(); }  // also makes the executable graph
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::string why_no_cuda_graphs() {
  // The layout of libtorch's graph objects depends on it.
  const int64_t libtorch = at::detail::getCUDAHooks().versionCUDART() / 1000;
  if (libtorch == CUDART_VERSION / 1000) return "";
  return "Lockstep was compiled with the headers of CUDA " + std::to_string(CUDART_VERSION / 1000) +
         ", and libtorch is of CUDA " + std::to_string(libtorch);
}

std::unique_ptr<DeviceGraph> make_cuda_graph() {
  return std::make_unique<CudaGraph>();
}

bool is_captured_by_cuda(const c10::Stream& stream) {
  // libtorch has loaded CUDA's runtime, so the program need not be linked with it.
  static const auto is_capturing = reinterpret_cast<decltype(&cudaStreamIsCapturing)>(
      ::dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing"));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return is_capturing != nullptr &&
         is_capturing(c10::cuda::CUDAStream(stream).stream(), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace lockstep::inline v0::device::internal
