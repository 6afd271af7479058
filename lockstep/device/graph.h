// Graph: what a device is given once, captured, and given again as a whole by one launch.
//
// CUDA devices have them where CUDA's headers were there when Lockstep was compiled, others where libtorch does, from 2.13 on.
// A step of training is captured by
// lockstep/graph/graphed_step.h, which stands on this.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::device {

// Why there are no graphs on the device: libtorch, or how Lockstep was compiled. Empty: there are.
std::string why_no_graphs(c10::Device device);

// What somebody has to do on the host for each replay of a graph that it is part of: an optimizer
// counts its steps, ranks agree that they replay. Called by the thread that replays, each function of
// all parts before the next one of any.
struct ReplayPart {
  // What is this process's alone, before the graph is given to the stream, which is the current
  // one; `first`: the host did it while it captured.
  std::function<void(bool first)> before = nullptr;
  // Lets others know, without waiting for them.
  std::function<void()> start = nullptr;
  // Waits for them.
  std::function<void()> meet = nullptr;
  // After the graph was given.
  std::function<void()> after = nullptr;
  // The graph is not given, for something has thrown since before() was called, perhaps before()
  // itself: the exception that is being handled. Of all parts where it was the first replay. Last
  // part first; must not throw.
  std::function<void()> cancel = nullptr;
  // Sees to what changes from one update of parameters to the next.
  bool updates = false;
  // In place of them: the capture came to nothing, and what the host did in it never happened.
  std::function<void()> undo = nullptr;
};

// A capture under way. From any thread that works for it.
class Capture {
 public:
  virtual ~Capture() = default;
  // No two of a process have the same one.
  virtual uint64_t id() const = 0;
  // In the order in which they are added; undo() the other way round.
  virtual void add(ReplayPart part) = 0;
  // Whether a part that updates has been added.
  virtual bool updates() const = 0;
  // Holds memory until the capture is over, so that nothing else of it gets the same.
  virtual void keep(const at::Tensor& tensor) = 0;
};

// Whether anybody in this process captures: a look at one word.
bool anybody_captures() noexcept;

// The capture that what `stream` is given now belongs to, or null. Throws InvalidArgument where
// somebody other than Graph captures it. Costs nothing while nobody captures.
Capture* capture_of(const c10::Stream& stream);

// Whether the capture with this id is not over.
bool is_under_way(uint64_t capture) noexcept;

// Whether the calling thread is the one that captures: it must not ask whether events are reached.
bool captures_here() noexcept;

// Used by one thread at a time. Tensors that the work has made, and its results, stay as long as
// the graph does, in memory of its own.
class Graph {
 public:
  // Throws InvalidArgument where why_no_graphs() says why.
  explicit Graph(c10::Device device);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures what `work` gives to the device through this thread's current stream, which is not the
  // default one, and those that it orders behind that. Nothing of it is done. The host waits for
  // the device before. One graph of a device at a time. Throws what `work` throws, and c10::Error
  // for what cannot be captured; the device has done nothing then, parts have been undone, and the graph
  // may capture again. What else `work` did on the host stays, tensors that it made among it,
  // which hold nothing. Not twice otherwise.
  void capture(const std::function<void()>& work);
  bool captured() const { return captured_; }

  // Does it, on this thread's current stream. Throws what parts throw, and then has not done it,
  // unless it was an after().
  void replay();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  bool captured_ = false;
};

}  // namespace lockstep::device
