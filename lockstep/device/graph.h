// Graph: device work that is captured once and then submitted again as a whole with one launch.
//
// CUDA devices support graphs if CUDA's headers were present when Lockstep was compiled, other
// devices if libtorch supports them, from 2.13 on. lockstep/graph/graphed_step.h captures a step of
// training, and is built on this.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// Why the device has no graphs: a reason in libtorch, or in how Lockstep was compiled. Empty: it
// has graphs.
LOCKSTEP_API std::string why_no_graphs(c10::Device device);

// Host work that belongs to each replay of a graph: an optimizer counts its steps, ranks agree that
// they replay. The replaying thread calls each function of all parts before the next function of
// any part.
struct ReplayPart {
  // Does the work of this process alone, before the graph is submitted to the current stream.
  // `first`: the host already did this work during the capture.
  std::function<void(bool first)> before = nullptr;
  // Notifies other ranks, without waiting for them.
  std::function<void()> start = nullptr;
  // Waits for the other ranks.
  std::function<void()> meet = nullptr;
  // Called after the graph was submitted.
  std::function<void()> after = nullptr;
  // Called if the graph is not submitted, because a function has thrown since before() was called,
  // perhaps before() itself; the exception is being handled. On the first replay it is called for
  // all parts. The last part is called first. Must not throw.
  std::function<void()> cancel = nullptr;
  // This part keeps up to date what changes between updates of parameters, such as step counts.
  bool updates = false;
  // Called instead of the others if the capture failed: reverts the host's work during it.
  std::function<void()> undo = nullptr;
};

// A capture in progress.
// Thread-safety: any thread that works for the capture.
class LOCKSTEP_API Capture {
 public:
  virtual ~Capture() = default;
  // Unique in the process.
  virtual uint64_t id() const = 0;
  // Adds a part; parts run in the order in which they are added, and undo() in reverse.
  virtual void add(ReplayPart part) = 0;
  // Whether a part with `updates` has been added.
  virtual bool updates() const = 0;
  // Keeps the tensor's memory until the capture ends, so that no other part of it reuses it.
  virtual void keep(const at::Tensor& tensor) = 0;
};

// Whether any thread of this process is capturing.
// Cost: one load.
LOCKSTEP_API bool anybody_captures() noexcept;

// The capture that work submitted to `stream` now belongs to, or null.
// Throws: InvalidArgument if the stream is captured by other code than Graph.
// Cost: none while no thread captures.
LOCKSTEP_API Capture* capture_of(const c10::Stream& stream);

// Whether the capture with this id has not ended yet.
LOCKSTEP_API bool is_under_way(uint64_t capture) noexcept;

// Whether the calling thread is capturing: it must then not query whether events are reached.
LOCKSTEP_API bool captures_here() noexcept;

// Tensors that the captured work made, its results among them, live as long as the graph, in memory
// of its own.
// Thread-safety: one thread at a time.
class LOCKSTEP_API Graph {
 public:
  // Throws InvalidArgument if why_no_graphs() gives a reason.
  explicit Graph(c10::Device device);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures the work that `work` submits to the device through this thread's current stream, which
  // must not be the default one, and through streams that `work` orders after it. None of it is
  // executed. The host first waits for the device. Only one graph of a device is captured at a
  // time, and a graph is captured once, unless the capture fails. After a failure the device has
  // executed nothing, the parts have been undone, and the graph may capture again. Other effects of
  // `work` on the host remain, such as the tensors that it made, which have no values.
  // Throws: what `work` throws; c10::Error for work that cannot be captured.
  void capture(const std::function<void()>& work);
  bool captured() const { return captured_; }

  // Executes the graph on this thread's current stream. Throws what the parts throw; then the graph
  // was not executed, unless after() threw.
  void replay();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  bool captured_ = false;
};

}  // namespace lockstep::inline v0::device
