// Children that a caller has registered in place of those that a module holds by their type:
// torch::nn::Module::replace_module changes the one and not the other.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::internal {

// Whether one may stand where the other does: the fused layers compute with its tensors as they lie.
inline bool is_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
}
inline bool is_alike(const torch::nn::LinearImpl& a, const torch::nn::LinearImpl& b) {
  return is_alike(a.weight, b.weight) && is_alike(a.bias, b.bias);
}
inline bool is_alike(const torch::nn::EmbeddingImpl& a, const torch::nn::EmbeddingImpl& b) {
  return is_alike(a.weight, b.weight);
}
inline bool is_alike(const torch::nn::LayerNormImpl& a, const torch::nn::LayerNormImpl& b) {
  return is_alike(a.weight, b.weight) && is_alike(a.bias, b.bias) &&
         a.options.eps() == b.options.eps();
}

// Whether hooks call `registered` in the place of `held`, maybe by others that were there between.
inline bool is_called_for(const torch::nn::Module& held, const torch::nn::Module& registered) {
  for (const auto& hook : hooks::hooks_of(held)) {
    const torch::nn::Module* const instead = hook->replacement();
    if (instead == nullptr) continue;
    if (instead == &registered || (instead != &held && is_called_for(*instead, registered)))
      return true;
  }
  return false;
}

// Holds the child that is registered. One that a hook calls in the held one's place
// (lockstep::replace_child) stays where it is. Throws InvalidArgument for one of another type or
// shape.
template <typename Impl>
void follow(const torch::nn::Module& parent, const std::shared_ptr<torch::nn::Module>& registered,
            torch::nn::ModuleHolder<Impl>& held) {
  if (registered == held.ptr()) return;
  if (is_called_for(*held, *registered)) return;
  const auto same = std::dynamic_pointer_cast<Impl>(registered);
  if (!same || !is_alike(*same, *held)) {
    std::string name;
    for (const auto& item : parent.named_children())
      if (item.value() == registered) name = item.key();
    throw InvalidArgument(parent.name() + ": '" + name + "' was replaced by a " +
                          registered->name() +
                          " of another type or shape, which replace_module cannot do: call "
                          "lockstep::replace_child");
  }
  held = torch::nn::ModuleHolder<Impl>(same);
}

// The parent's first children, in the order in which they were registered.
template <typename... Holders>
void follow_children(const torch::nn::Module& parent, Holders&... held) {
  const auto children = parent.children();
  size_t i = 0;
  (follow(parent, children[i++], held), ...);
}

}  // namespace lockstep::inline v0::internal
