// Forward hooks for C++ modules: a child of a model is wrapped, replaced or frozen from outside, by
// its name, without changes to the model's source.
//
//   auto handle = lockstep::wrap_forward(*model, "layer1.0.conv1",
//       [](const lockstep::Forward& forward, const at::Tensor& input) {
//         return forward(input).clamp(-6, 6);
//       });
//   lockstep::replace_child(*model, "fc", torch::nn::Linear(512, 3));
//   lockstep::freeze_child(*model, "layer1");
//
// forward() of a C++ module is not virtual (pytorch#25888), so code that holds a child by its type
// calls it directly. There are three ways to intercept it, tried in this order:
//   1. a module that derives from Hookable, below: any signature, with one line in its source
//      (hooks see only its first argument and its result where these are tensors, or all of its
//      arguments);
//   2. a layer of libtorch with parameters (Linear, Conv1d to 3d and their transposes, Embedding,
//      BatchNorm1d to 3d, LayerNorm, GroupNorm), wherever it is held: its parameters carry a mark
//      by which its operation is intercepted (layer_hook.h);
//   3. a torch::nn::Sequential, wherever it is held, and any child of one, since it calls its
//      children through a virtual function: modules from a tensor to a tensor.
// Other modules are refused, with the line that would allow hooks. SyncBatchNorm uses the second
// way; the fused layers of this library's models step aside where a child has hooks.
//
// A copy by clone() has the hooks too, and calls the same functions; those around a whole
// Sequential are not copied. The copy of a replaced child is a plain one with the replacement's
// values, and clone() throws where their types differ.
//
// In a Sequential whose child (or which itself) has a hook, stand-ins replace the children: its
// typed at<T>() and ptr<T>() throw, also after the hook is removed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The child's result for an input, which may differ from the hook's own.
using Forward = std::function<at::Tensor(const at::Tensor& input)>;
// Returns the child's output. It may call `forward` any number of times, or not at all. It may keep
// it and call it later, as long as the model lives, except for a layer of libtorch (the second
// way), whose `forward` ends with the call. Called on every thread that runs the child, above
// autograd and autocast; the model's forward rethrows its exceptions.
using ForwardHook = std::function<at::Tensor(const Forward& forward, const at::Tensor& input)>;

namespace internal {

struct LOCKSTEP_API HookPlace {
  virtual ~HookPlace() = default;
  virtual void remove() = 0;
};

// The hooks of one module with one signature.
template <typename Signature>
class HookList;
template <typename Result, typename... Args>
class HookList<Result(Args...)> {
 public:
  using Inner = std::function<Result(Args...)>;
  using Hook = std::function<Result(const Inner& forward, Args... args)>;

  std::shared_ptr<const Hook> add(Hook hook) {
    hooks_.push_back(std::make_shared<const Hook>(std::move(hook)));
    return hooks_.back();
  }
  void remove(const std::shared_ptr<const Hook>& hook) { std::erase(hooks_, hook); }
  bool empty() const { return hooks_.empty(); }

  // The last added hook is outermost.
  Result call(const Inner& compute, Args... args) const {
    // A copy, since a hook may remove itself meanwhile, or keep its arguments.
    return call(std::make_shared<const Hooks>(hooks_), hooks_.size(), compute,
                std::forward<Args>(args)...);
  }

 private:
  using Hooks = std::vector<std::shared_ptr<const Hook>>;

  static Result call(const std::shared_ptr<const Hooks>& hooks, size_t left, const Inner& compute,
                     Args... args) {
    if (left == 0) return compute(std::forward<Args>(args)...);
    const Inner inner = [hooks, left, compute](Args... given) {
      return call(hooks, left - 1, compute, std::forward<Args>(given)...);
    };
    return (*(*hooks)[left - 1])(inner, std::forward<Args>(args)...);
  }

  Hooks hooks_;
};

// A Hookable from a tensor and other arguments to a tensor, for hooks that see only the tensors.
class LOCKSTEP_API TensorFirst {
 public:
  virtual std::shared_ptr<const void> add_tensor_hook(ForwardHook hook) = 0;
  virtual void remove_tensor_hook(const std::shared_ptr<const void>& hook) = 0;

 protected:
  TensorFirst() = default;
  TensorFirst(const TensorFirst&) = default;
  TensorFirst& operator=(const TensorFirst&) = default;
  ~TensorFirst() = default;
};

// Arguments that may be kept as a copy and passed again: values, and references to const.
template <typename Arg>
concept Repeatable =
    (!std::is_reference_v<Arg> ||
     (std::is_lvalue_reference_v<Arg> && std::is_const_v<std::remove_reference_t<Arg>>)) &&
    std::is_copy_constructible_v<std::remove_cvref_t<Arg>>;

// For a Derived with forward_hooks(). Empty for other signatures.
template <typename Derived, typename Signature>
class TensorHooks {};
template <typename Derived, Repeatable... Rest>
class TensorHooks<Derived, at::Tensor(const at::Tensor&, Rest...)> : public TensorFirst {
  using List = HookList<at::Tensor(const at::Tensor&, Rest...)>;

 public:
  std::shared_ptr<const void> add_tensor_hook(ForwardHook hook) final {
    return list().add([hook = std::move(hook)](const typename List::Inner& forward,
                                               const at::Tensor& input, Rest... rest) {
      return hook(
          [forward, kept = std::tuple<std::decay_t<Rest>...>(rest...)](const at::Tensor& given) {
            return std::apply(
                [&](const auto&... others) { return forward(given, Rest(others)...); }, kept);
          },
          input);
    });
  }
  void remove_tensor_hook(const std::shared_ptr<const void>& hook) final {
    list().remove(std::static_pointer_cast<const typename List::Hook>(hook));
  }

 private:
  List& list() { return static_cast<Derived*>(this)->forward_hooks(); }
};

}  // namespace internal

// Your own module derives from this, beside torch::nn::Module, to support hooks on its forward:
//
//   struct BlockImpl : torch::nn::Module, lockstep::Hookable<at::Tensor(const at::Tensor&)> {
//     at::Tensor compute(const at::Tensor& x) override;   // was: forward
//   };
//
// forward(), which the rest of the model calls as before, runs the hooks around compute(). Without
// hooks it costs one virtual call. Arguments of reference type are passed on unchanged.
template <typename Signature>
class Hookable;
template <typename Result, typename... Args>
class Hookable<Result(Args...)>
    : public internal::TensorHooks<Hookable<Result(Args...)>, Result(Args...)> {
 public:
  using Hook = typename internal::HookList<Result(Args...)>::Hook;

  Result forward(Args... args) {
    if (hooks_.empty()) return compute(std::forward<Args>(args)...);
    return hooks_.call([this](Args... given) { return compute(std::forward<Args>(given)...); },
                       std::forward<Args>(args)...);
  }
  internal::HookList<Result(Args...)>& forward_hooks() { return hooks_; }

 protected:
  Hookable() = default;
  Hookable(const Hookable&) = default;
  Hookable& operator=(const Hookable&) = default;
  ~Hookable() = default;

  virtual Result compute(Args... args) = 0;

 private:
  internal::HookList<Result(Args...)> hooks_;
};

// Removes a hook; otherwise the hook stays as long as the child. Copies refer to the same hook.
// Destroying a handle does nothing.
class LOCKSTEP_API HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::shared_ptr<internal::HookPlace> place) : place_(std::move(place)) {}
  // Must not run while the child runs on another thread. Does nothing if the hook or the child is
  // gone.
  void remove() {
    if (place_) std::exchange(place_, nullptr)->remove();
  }

 private:
  std::shared_ptr<internal::HookPlace> place_;
};

// The modules that match these names in model.named_modules(), in its order: a name, or one in
// which a * stands for one part between dots: "model.layers.*".
// Throws: InvalidArgument for a name that matches nothing (with the nearest), and for no names at
// all.
LOCKSTEP_API std::vector<std::string> modules_named(const torch::nn::Module& model,
                                                    const std::vector<std::string>& names);
// A model's layers: the outermost modules that are Hookable from a tensor to a tensor and are in a
// list (the last part of their name is a number), in the model's order.
LOCKSTEP_API std::vector<std::string> layers_of(const torch::nn::Module& model);

// The module of that name in model.named_modules().
// Throws: InvalidArgument that names the nearest.
LOCKSTEP_API std::shared_ptr<torch::nn::Module> find_module(const torch::nn::Module& model,
                                                            const std::string& path);

// Puts `hook` around the forward of the child at `path`, outside its existing hooks. Parameters,
// buffers and names are unchanged. Does not communicate.
// Requires: the model is not running.
// Throws: InvalidArgument if there is no such child, it cannot be intercepted, or it shares its
// weight with another layer of its kind; the model is then unchanged.
LOCKSTEP_API HookHandle wrap_forward(torch::nn::Module& model, const std::string& path,
                                     ForwardHook hook);

// The same for a Hookable, with all its arguments.
template <typename Signature>
HookHandle wrap_forward(torch::nn::Module& model, const std::string& path,
                        typename Hookable<Signature>::Hook hook);

// The options of replace_child().
struct ReplaceOptions {
  // The parameters and buffers of the replaced child become empty, except those that the model or
  // the replacement also have. The model may still hold the child by its type, but does not compute
  // it.
  bool release_memory = false;
};

// Calls `replacement` where the model calls the child at `path`, and registers it in its place: its
// parameters and buffers get the child's names, for optimizers, state dicts and to(). It is a
// module from a tensor to a tensor, and may call the child that it replaces, as an adapter around
// it does.
// Throws: as wrap_forward().
template <typename M>
void replace_child(torch::nn::Module& model, const std::string& path,
                   const torch::nn::ModuleHolder<M>& replacement,
                   const ReplaceOptions& options = {});
LOCKSTEP_API void replace_child(torch::nn::Module& model, const std::string& path,
                                const torch::nn::Sequential& replacement,
                                const ReplaceOptions& options = {});
// For an AnyModule, which owns the module that it calls: it must not call the child.
// Throws: InvalidArgument.
LOCKSTEP_API void replace_child(torch::nn::Module& model, const std::string& path,
                                torch::nn::AnyModule replacement,
                                const ReplaceOptions& options = {});

// The parameters below `path` no longer require gradients, and batch norms there use their running
// statistics without updating them, also after model->train(); they still count batches, and still
// refuse a single value per channel in training, like libtorch's. Call it before making
// DistributedDataParallel and the optimizer, which then skip the parameters.
// Throws: InvalidArgument if there is no such child, or a module below it with running statistics
// is not a BatchNorm1d to 3d; nothing has changed then.
LOCKSTEP_API void freeze_child(torch::nn::Module& model, const std::string& path);

// Implementation.

namespace internal {

template <typename Signature>
struct HookableHook final : HookPlace {
  std::weak_ptr<torch::nn::Module> module;
  std::shared_ptr<const typename Hookable<Signature>::Hook> hook;
  void remove() override {
    const auto held = module.lock();
    if (auto* hookable = dynamic_cast<Hookable<Signature>*>(held.get()))
      hookable->forward_hooks().remove(hook);
  }
};

[[noreturn]] LOCKSTEP_API void refuse_signature(const torch::nn::Module& module,
                                                const std::string& path);

// The module in a child's place. The model owns `module`, and so does `forward`, unless it calls
// the child: it would then own itself. `entry` calls it for a Sequential's list.
struct Replacement {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
  std::function<torch::nn::AnyModule()> entry;
};
LOCKSTEP_API void replace_child(torch::nn::Module& model, const std::string& path,
                                const Replacement& replacement, const ReplaceOptions& options);
LOCKSTEP_API bool calls_child(const torch::nn::Module& model, const std::string& path,
                              const torch::nn::Module& replacement);
// Throws: Error if it is null.
LOCKSTEP_API void check_held(const void* held);

}  // namespace internal

template <typename M>
void replace_child(torch::nn::Module& model, const std::string& path,
                   const torch::nn::ModuleHolder<M>& replacement, const ReplaceOptions& options) {
  const std::shared_ptr<M>& module = replacement.ptr();
  const bool calls_child = internal::calls_child(model, path, *module);
  const auto forward = [weak = std::weak_ptr<M>(module), kept = calls_child ? nullptr : module](
                           const at::Tensor& input) -> at::Tensor {
    const std::shared_ptr<M> held = weak.lock();
    internal::check_held(held.get());
    return held->forward(input);
  };
  internal::replace_child(model, path,
                          {.module = module,
                           .forward = forward,
                           .entry = [module] { return torch::nn::AnyModule(module); }},
                          options);
}

template <typename Signature>
HookHandle wrap_forward(torch::nn::Module& model, const std::string& path,
                        typename Hookable<Signature>::Hook hook) {
  const std::shared_ptr<torch::nn::Module> child = find_module(model, path);
  auto* const hookable = dynamic_cast<Hookable<Signature>*>(child.get());
  if (hookable == nullptr) internal::refuse_signature(*child, path);
  auto place = std::make_shared<internal::HookableHook<Signature>>();
  place->module = child;
  place->hook = hookable->forward_hooks().add(std::move(hook));
  return HookHandle(std::move(place));
}

}  // namespace lockstep::inline v0
