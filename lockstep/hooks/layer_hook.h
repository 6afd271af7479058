// LayerHook: code around the forward of one of libtorch's own layers, for rooms that build on it.
// Programs use forward_hook.h.
//
// How: forward() of a C++ module is not virtual, and the class that calls it knows its type; but
// what a layer computes is one operation on its parameters. Those carry a mark, a dispatch key
// beside the tensor's own (internal/dispatch_key.h), which makes that operation call the layer's
// hooks, whoever calls it; every other operation passes it by. The mark lives in the tensor: it
// survives Module::to(), clone(), torch::load(), lockstep::load(), copy_() and zero_(), and is lost
// when somebody puts another tensor in its place (Tensor::set_data(), or an assignment to the
// layer's member). Two layers of different kinds may share a tensor, and each is hooked by itself;
// two of one kind that do are hooked together.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::hooks {

class LayerHook;
using LayerHooks = std::vector<std::shared_ptr<LayerHook>>;  // the innermost first

// One forward of a hooked layer, on the stack of whoever calls it.
class LayerCall {
 public:
  using Compute = std::function<at::Tensor(const at::Tensor& input)>;
  using Arguments = std::vector<c10::IValue>;
  LayerCall(const LayerHooks& hooks, at::Tensor input, Arguments& arguments, const Compute& compute)
      : hooks_(hooks),
        left_(hooks.size()),
        input_(std::move(input)),
        arguments_(arguments),
        compute_(compute) {}

  const at::Tensor& input() const { return input_; }
  // The operation's, as libtorch's schema has them, for hooks that know the kind of the layer. What
  // is inside of a hook computes with what that leaves here; of a Linear's it looks at none but the bias
  // (leave_out_bias()).
  Arguments& arguments() { return arguments_; }
  // What is inside of this hook computes a Linear's product without the bias. Nothing where there is none.
  void leave_out_bias();
  // What the layer gives for `input`: the other hooks inside this one, at last the operation. Any
  // number of times.
  at::Tensor compute(const at::Tensor& input);

 private:
  const LayerHooks& hooks_;
  size_t left_;
  at::Tensor input_;
  Arguments& arguments_;
  const Compute& compute_;
};

// What code that computes around a divided layer needs to know of it.
class LayerPart {
 public:
  virtual ~LayerPart() = default;
  // Where the columns that it gives begin in those of the whole layer.
  virtual int64_t first_column() const = 0;
  // Gives random numbers, a CPU tensor, the values that they have on the first part. Collective among the parts.
  virtual void agree(const at::Tensor& numbers) const = 0;
};

// Called by every thread that runs the layer, clones of the module among them: they share it.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  // -> the layer's output. Above autograd and autocast. `call` is not to be kept.
  virtual at::Tensor forward(LayerCall& call) = 0;
  // The module that the hook calls in the layer's place, and that is registered there; else null.
  virtual const torch::nn::Module* replacement() const { return nullptr; }
  // Of a layer that is called as a part of one that several ranks have; else null.
  virtual const LayerPart* part() const { return nullptr; }
};

// Why the layer takes no hook, as the end of a sentence; empty if it takes them: Linear, Conv1d to
// Conv3d and their transposes, Embedding, LayerNorm and GroupNorm, no classes derived from them, and
// BatchNorm1d to 3d; with a tensor that can carry the mark.
std::string cannot_hook(const torch::nn::Module& layer);

enum class Place : uint8_t {
  kOutermost,  // around those that the layer has, but inside of a replacement
  kInnermost,  // in the place of the layer's own computation
};
// Throws InvalidArgument if the layer takes none.
void add_hook(torch::nn::Module& layer, std::shared_ptr<LayerHook> hook,
              Place place = Place::kOutermost);
// Whether it had it.
bool remove_hook(torch::nn::Module& layer, const LayerHook* hook);
LayerHooks hooks_of(const torch::nn::Module& layer);
// Gives `to`, a module of the same kind, the hooks of `from` in place of its own; nothing where
// these are no layers that take hooks.
void share_hooks(const torch::nn::Module& from, torch::nn::Module& to);

// Whether an operation on this parameter or buffer may call hooks. Code that computes with a
// layer's parameters by itself, in a fused node, asks this and calls the layer where they do.
bool is_hooked(const at::Tensor& tensor);

// Tensor::set_data, but the tensor keeps its mark.
void set_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace lockstep::hooks
