// checkpoint_layers: checkpoint() around layers of a model, by their names.
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
#include "lockstep/hooks/forward_hook.h"

namespace lockstep {

struct CheckpointedLayers {
  // As in model.named_modules(); a * stands for one part between dots: "model.layers.*".
  std::vector<std::string> names;
  int every = 1;  // of all that match, in the model's order: the first and each n-th after it
  CheckpointOptions options = {};
};

// The layers that are meant. Throws InvalidArgument: a name that matches nothing, `every` below 1; a
// layer with running statistics below it (BatchNorm), which a second forward would move again, unless
// it is frozen (freeze_child()).
std::vector<std::string> checkpointed_layers(const torch::nn::Module& model,
                                             const CheckpointedLayers& which);

// From then on each of these layers computes its forward again in backward. The handles take that away
// again, and may go. Layers are children of a torch::nn::Sequential, from a tensor to a tensor, or
// Hookable (hooks/forward_hook.h). Throws InvalidArgument as checkpointed_layers() and wrap_forward()
// do, and for a layer of libtorch with parameters alone (a Linear keeps nothing but its input); the
// model then computes as before. Not while the model runs.
std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                          const CheckpointedLayers& which);
// The same for Hookables of another signature.
template <typename Signature>
std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                          const CheckpointedLayers& which);

// Implementation.

namespace activations::internal {

// Takes hooks away again unless all of them could be put.
class Handles {
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
  std::weak_ptr<torch::nn::Module> model;  // null where nobody owns it by a pointer
  CheckpointOptions options;

  Result operator()(const std::function<Result(Args...)>& forward, Args... args) const {
    // What is kept for backward keeps the layers too.
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

}  // namespace lockstep
