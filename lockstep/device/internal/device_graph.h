// The interface to a device that can capture graphs.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>

namespace lockstep::inline v0::device::internal {

// One graph, captured once, on the current device and its current stream. If end() throws, the
// capture has ended, too, and there is no graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Calls on other threads do not disturb the capture.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
};

// CUDA's own graphs. cuda_graph.cpp implements them if CUDA's headers were present at compile time
// (cmake/LockstepCuda.cmake).
#ifdef LOCKSTEP_CUDA_GRAPHS
// The reason why there are none; empty: there are.
std::string why_no_cuda_graphs();
std::unique_ptr<DeviceGraph> make_cuda_graph();
bool is_captured_by_cuda(const c10::Stream& stream);
#endif

}  // namespace lockstep::inline v0::device::internal
