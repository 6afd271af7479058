// Inputs of checkpointed parts in host memory between forward and backward. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/device/event.h"

namespace lockstep::activations::internal {

// Whether it is worth the way: what a part before has computed on a device. What the model owns stays there anyway, and so
// does what would not come back as it lay: a view whose elements have gaps between them, or are there twice.
bool may_be_offloaded(const at::Tensor& tensor);

// One part's inputs. They go to pinned memory on a stream beside the current one, behind what that was given, while the part's
// forward goes on; and come back on another, begun by the part that runs backward before this one. Device memory is only ever
// that of the current streams, ordered with those beside them at both ends, so that a host which runs ahead takes none for what
// the device has yet to do. The host waits for nothing, once libtorch has taken its memory.
class Offloaded {
 public:
  // Of this thread's parts it is the last from now on. Tensors that may not be offloaded are left alone, undefined in the result.
  static std::shared_ptr<Offloaded> of(const std::vector<at::Tensor>& inputs);
  ~Offloaded();
  Offloaded(const Offloaded&) = delete;
  Offloaded& operator=(const Offloaded&) = delete;

  // The part's forward is over: what this thread's current streams are given from now on, which may change the inputs or have
  // their memory, comes after the copies. By the thread that made it.
  void let_go();
  // The inputs on their devices, behind which this thread's current streams come from now on. Begins to bring those of the part before.
  // Any thread; as often as the graph is kept.
  std::vector<at::Tensor> back();

 private:
  Offloaded() = default;
  void send(const std::vector<at::Tensor>& inputs);

  struct Away {
    at::Tensor host;   // pinned; undefined: of an input that was left alone
    at::Tensor input;  // until let_go()
    c10::Device device = c10::kCPU;
    std::shared_ptr<device::Event> there;
  };
  struct Back {
    at::Tensor tensor;
    c10::Stream of;  // whose memory it has
    c10::Stream in;  // that copies
    device::Event there;
  };
  // By input; nullopt: of one that was left alone.
  using Ahead = std::vector<std::optional<Back>>;
  void begin() LOCKSTEP_REQUIRES(mutex_);
  void begin_ahead();

  std::vector<Away> away_;
  std::weak_ptr<Offloaded> before_;
  Mutex mutex_;
  std::optional<Ahead> ahead_ LOCKSTEP_GUARDED_BY(mutex_);
  bool was_back_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::activations::internal
