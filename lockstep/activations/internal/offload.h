// Inputs of checkpointed parts, kept in host memory between forward and backward. Not a public
// header.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/device/event.h"

namespace lockstep::inline v0::activations::internal {

// Whether offloading saves memory and preserves the layout: true for a tensor that an earlier part
// has computed on a device. The model's own tensors stay on the device anyway, and a view whose
// elements have gaps or overlap would return with another layout.
bool may_be_offloaded(const at::Tensor& tensor);

// The inputs of one part. They are copied to pinned memory on a side stream, after the work
// submitted to the current one, while the part's forward continues; they return on another stream,
// which the part that runs backward before this one starts. Device memory is always allocated on
// the current streams, which are ordered with the side streams at both ends, so a host that runs
// ahead does not allocate memory for work that the device has not reached. The host waits for
// nothing, once libtorch has allocated its pinned memory.
class Offloaded {
 public:
  // Makes this the last one of this thread's parts. Tensors that may not be offloaded are left
  // alone, and are undefined in the result of back().
  static std::shared_ptr<Offloaded> of(const std::vector<at::Tensor>& inputs);
  ~Offloaded();
  Offloaded(const Offloaded&) = delete;
  Offloaded& operator=(const Offloaded&) = delete;

  // To be called when the part's forward has finished, on the thread that made this: orders later
  // work of this thread's current streams, which may change the inputs or reuse their memory, after
  // the copies.
  void let_go();
  // Returns the inputs on their devices; this thread's current streams are ordered after their
  // arrival. Starts to bring back those of the part before. May be called once for each backward of
  // the graph.
  // Thread-safety: any thread.
  std::vector<at::Tensor> back();

 private:
  Offloaded() = default;
  void send(const std::vector<at::Tensor>& inputs);

  struct Away {
    at::Tensor host;   // pinned; undefined for an input that was left alone
    at::Tensor input;  // until let_go()
    c10::Device device = c10::kCPU;
    std::shared_ptr<device::Event> there;
  };
  struct Back {
    at::Tensor tensor;
    c10::Stream of;  // the stream that its memory was allocated on
    c10::Stream in;  // the stream that copies
    device::Event there;
  };
  // One per input; nullopt for an input that was left alone.
  using Ahead = std::vector<std::optional<Back>>;
  void begin() LOCKSTEP_REQUIRES(mutex_);
  void begin_ahead();

  std::vector<Away> away_;
  std::weak_ptr<Offloaded> before_;
  Mutex mutex_;
  std::optional<Ahead> ahead_ LOCKSTEP_GUARDED_BY(mutex_);
  bool was_back_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::inline v0::activations::internal
