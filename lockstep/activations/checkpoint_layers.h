// checkpoint_layers: checkpoint() around layers of a model, selected by their names.
//
//   checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}});
//   checkpoint_layers(*net, {.names = {"blocks.*"}, .every = 2});   // every second one
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/activations/checkpoint.h"
#include "lockstep/core/export.h"
#include "lockstep/hooks/forward_hook.h"

namespace lockstep::inline v0 {

// Which layers checkpoint_layers() wraps, and how.
struct CheckpointedLayers {
  // As in model.named_modules(); a * matches one part between dots: "model.layers.*".
  std::vector<std::string> names;
  int every = 1;  // of all matching layers, in the model's order: the first and every n-th after it
  CheckpointOptions options = {};
};

// Returns the selected layers.
// Throws: InvalidArgument for a name that matches nothing, for `every` below 1, and for a layer
// that contains running statistics (BatchNorm), which a second forward would update again, unless
// it is frozen (freeze_child()).
LOCKSTEP_API std::vector<std::string> checkpointed_layers(const torch::nn::Module& model,
                                                          const CheckpointedLayers& which);

// From now on each of these layers computes its forward again in backward. HookHandle::remove()
// undoes that; the handles may be dropped. A layer must be a child of a torch::nn::Sequential, from
// a tensor to a tensor, or Hookable (hooks/forward_hook.h).
// Throws: InvalidArgument as checkpointed_layers() and wrap_forward() do, and for a layer of
// libtorch that only has parameters (a Linear keeps nothing but its input); the model then computes
// as before.
// Requires: the model does not run during the call.
LOCKSTEP_API std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                                       const CheckpointedLayers& which);
// The same for Hookables with another signature.
template <typename Signature>
std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                          const CheckpointedLayers& which);

// Implementation.

namespace activations::internal {

// Removes the hooks again unless release() is called.
class LOCKSTEP_API Handles {
 public:
  ~Handles() {
    for (HookHandle& handle : handles_) handle.remove();
  }
  void add(HookHandle handle) { handles_.push_back(std::move(handle)); }
  std::vector<HookHandle> release() { return std::exchange(handles_, {}); }

 private:
  std::vector<HookHandle> handles_;
};

template <typename Signature>
struct CheckpointHook;
template <typename Result, typename... Args>
struct CheckpointHook<Result(Args...)> {
  std::weak_ptr<torch::nn::Module> model;  // null if no shared pointer owns the model
  CheckpointOptions options;

  Result operator()(const std::function<Result(Args...)>& forward, Args... args) const {
    // The memory kept for backward also keeps the layers alive.
    return checkpoint(
        options,
        [forward, held = model.lock()](const std::decay_t<Args>&... given) -> Result {
          return forward(given...);
        },
        std::decay_t<Args>(args)...);
  }
};

}  // namespace activations::internal

template <typename Signature>
std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                          const CheckpointedLayers& which) {
  activations::internal::Handles handles;
  for (const std::string& name : checkpointed_layers(model, which))
    handles.add(wrap_forward<Signature>(
        model, name,
        activations::internal::CheckpointHook<Signature>{model.weak_from_this(), which.options}));
  return handles.release();
}

}  // namespace lockstep::inline v0
