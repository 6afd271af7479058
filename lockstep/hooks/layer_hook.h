// LayerHook: code around the forward of one of libtorch's own layers, for rooms that build on it.
// Programs use forward_hook.h.
//
// Method: forward() of a C++ module is not virtual, and its caller knows its type; but a layer
// computes one operation on its parameters. These carry a mark, a dispatch key beside the tensor's
// own (internal/dispatch_key.h), which makes that operation call the layer's hooks for every
// caller; all other operations ignore it. The mark lives in the tensor: it survives Module::to(),
// clone(), torch::load(), lockstep::load(), copy_() and zero_(), and is lost when code replaces the
// tensor (Tensor::set_data(), or an assignment to the layer's member). Two layers of different
// kinds may share a tensor, and each is hooked separately; two of one kind that share one are
// hooked together.
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

namespace lockstep::inline v0::hooks {

class LayerHook;
using LayerHooks = std::vector<std::shared_ptr<LayerHook>>;  // the innermost first

// One forward of a hooked layer, on the caller's stack.
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
  // The operation's arguments in the order of libtorch's schema, for hooks that know the kind of
  // the layer. Inner hooks and the operation use the arguments that this hook leaves here; a Linear
  // uses only the bias (leave_out_bias()).
  Arguments& arguments() { return arguments_; }
  // Makes inner hooks and the operation compute a Linear's product without the bias, and returns
  // that of the layer that was called; undefined where there is none.
  at::Tensor leave_out_bias();
  // The layer's result for `input`: runs the inner hooks, and finally the operation. May be called
  // any number of times.
  at::Tensor compute(const at::Tensor& input);

 private:
  const LayerHooks& hooks_;
  size_t left_;
  at::Tensor input_;
  Arguments& arguments_;
  const Compute& compute_;
};

// One rank's part of a divided layer, for code that computes around the layer.
class LayerPart {
 public:
  virtual ~LayerPart() = default;
  // Where the columns that it gives begin in those of the whole layer.
  virtual int64_t first_column() const = 0;
  // Gives random numbers, a CPU tensor, the values that they have on the first part. Collective among the parts.
  virtual void agree(const at::Tensor& numbers) const = 0;
};

// Called by every thread that runs the layer or clones of the module, which share it.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  // Returns the layer's output. Runs above autograd and autocast. `call` must not be kept.
  virtual at::Tensor forward(LayerCall& call) = 0;
  // The module that the hook calls in place of the layer, and that is registered there; otherwise
  // null.
  virtual const torch::nn::Module* replacement() const { return nullptr; }
  // The part, where the layer is called as a part of one that several ranks have; else null.
  virtual const LayerPart* part() const { return nullptr; }
};

// Why the layer supports no hook, as the end of a sentence; empty if it does: Linear, Conv1d to
// Conv3d and their transposes, Embedding, LayerNorm and GroupNorm, but no classes derived from
// them, and BatchNorm1d to 3d, with a tensor that can carry the mark.
std::string cannot_hook(const torch::nn::Module& layer);

enum class Place : uint8_t {
  kOutermost,  // around the layer's existing hooks, but inside a replacement
  kInnermost,  // in place of the layer's own computation
};
// Throws InvalidArgument if the layer supports none.
void add_hook(torch::nn::Module& layer, std::shared_ptr<LayerHook> hook,
              Place place = Place::kOutermost);
// Returns whether the layer had it.
bool remove_hook(torch::nn::Module& layer, const LayerHook* hook);
LayerHooks hooks_of(const torch::nn::Module& layer);
// Gives `to`, a module of the same kind, the hooks of `from` in place of its own; does nothing for
// modules that are not such layers.
void share_hooks(const torch::nn::Module& from, torch::nn::Module& to);

// Whether an operation on this parameter or buffer may call hooks. Code that computes with a
// layer's parameters in a fused node checks this, and calls the layer where it does.
bool is_hooked(const at::Tensor& tensor);

// Tensor::set_data, but the tensor keeps its mark.
void set_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace lockstep::inline v0::hooks
