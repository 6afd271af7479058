// Inputs of checkpointed parts in host memory between forward and backward. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/device/event.h"

namespace lockstep::activations::internal {

// Whether it is worth the way: what a part before has computed on a device. What the model owns stays there anyway.
bool may_be_offloaded(const at::Tensor& tensor);

// One part's inputs. They go to pinned memory on a stream beside the current one, behind what that was given; and come
// back on another, begun by the part that runs backward before this one. The host waits for nothing.
class Offloaded {
 public:
  // Of this thread's parts it is the last from now on. Tensors that may not be offloaded are left alone, undefined in the result.
  static std::shared_ptr<Offloaded> of(const std::vector<at::Tensor>& inputs);
  explicit Offloaded(const std::vector<at::Tensor>& inputs);

  // The inputs on their devices, behind which this thread's current streams come from now on. Begins to bring those of the part before.
  // Any thread; as often as the graph is kept.
  std::vector<at::Tensor> back();

 private:
  struct Away {
    at::Tensor host;  // pinned; undefined: of an input that was left alone
    c10::Device device = c10::kCPU;
    std::shared_ptr<device::Event> there;
  };
  struct Ahead {
    std::vector<at::Tensor> tensors;
    std::vector<device::Event> there;
  };
  void begin() LOCKSTEP_REQUIRES(mutex_);
  void begin_ahead();

  std::vector<Away> away_;
  std::weak_ptr<Offloaded> before_;
  Mutex mutex_;
  std::shared_ptr<Ahead> ahead_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::activations::internal
