// What Graph needs of a device that can capture.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>

namespace lockstep::device::internal {

// One graph, captured once, on the current device and its current stream. An end that throws ends
// the capture too, and leaves it without a graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Calls of other threads do not disturb the capture.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
};

// CUDA's own graphs. Where CUDA's headers were there when this was compiled
// (cmake/LockstepCuda.cmake) cuda_graph.cpp has them.
#ifdef LOCKSTEP_CUDA_GRAPHS
// Empty: there are.
std::string why_no_cuda_graphs();
std::unique_ptr<DeviceGraph> make_cuda_graph();
bool is_captured_by_cuda(const c10::Stream& stream);
#endif

}  // namespace lockstep::device::internal
