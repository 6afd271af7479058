// Forward hooks for C++ modules: a child of a model is wrapped, replaced or frozen from outside, by
// its name, and the model's source stays as it is.
//
//   auto handle = lockstep::wrap_forward(*model, "layer1.0.conv1",
//       [](const lockstep::Forward& forward, const at::Tensor& input) {
//         return forward(input).clamp(-6, 6);
//       });
//   lockstep::replace_child(*model, "fc", torch::nn::Linear(512, 3));
//   lockstep::freeze_child(*model, "layer1");
//
// forward() of a C++ module is not virtual (pytorch#25888), so whoever holds a child by its type
// calls it directly. There are three doors, looked at in this order:
//   1. a module that derives from Hookable, below: any signature, one line of its source (hooks that
//      see its first argument and its result alone where these are tensors, or all of its arguments);
//   2. a layer of libtorch with parameters (Linear, Conv1d to 3d and their transposes, Embedding,
//      BatchNorm1d to 3d, LayerNorm, GroupNorm), wherever it is held: its parameters carry a mark
//      by which its operation is caught (layer_hook.h);
//   3. a torch::nn::Sequential, wherever it is held, and any child of one, since it calls its
//      children through a virtual function: modules from a tensor to a tensor.
// What has none of them is refused, with the line that would open one. SyncBatchNorm is made of the
// second; the fused layers of this library's models step aside where a child has hooks.
//
// A copy by clone() has the hooks too, and calls the same functions; those around a whole Sequential
// stay behind. Of a child that was replaced the copy has a plain one with the replacement's values,
// and clone() throws where their types differ.
//
// In a Sequential whose child (or which itself) has a hook, stand-ins take the children's place: its
// typed at<T>() and ptr<T>() throw, also when the hook has gone.
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

namespace lockstep {

// What the child gives for an input; the input may be another than the hook's own.
using Forward = std::function<at::Tensor(const at::Tensor& input)>;
// -> the child's output. It may call `forward` any number of times, or not at all. It may keep it, to
// call it later, as long as the model lives; but not that of a layer of libtorch (the second door),
// which is gone with the call. Called on every thread that runs the child, above autograd and
// autocast; what it throws, the model's forward throws.
using ForwardHook = std::function<at::Tensor(const Forward& forward, const at::Tensor& input)>;

namespace internal {

struct HookPlace {
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

  // The last added outermost.
  Result call(const Inner& compute, Args... args) const {
    // Theirs: one may take itself away meanwhile, or keep what it is given.
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

// A Hookable from a tensor and whatever else to a tensor, for hooks that see the tensors alone.
class TensorFirst {
 public:
  virtual std::shared_ptr<const void> add_tensor_hook(ForwardHook hook) = 0;
  virtual void remove_tensor_hook(const std::shared_ptr<const void>& hook) = 0;

 protected:
  TensorFirst() = default;
  TensorFirst(const TensorFirst&) = default;
  TensorFirst& operator=(const TensorFirst&) = default;
  ~TensorFirst() = default;
};

// What may be kept as a copy and given again: values, and references to const.
template <typename Arg>
concept Repeatable =
    (!std::is_reference_v<Arg> ||
     (std::is_lvalue_reference_v<Arg> && std::is_const_v<std::remove_reference_t<Arg>>)) &&
    std::is_copy_constructible_v<std::remove_cvref_t<Arg>>;

// Derived has forward_hooks(). Other signatures: nothing.
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

// What a module of your own derives from, beside torch::nn::Module, to take hooks on its forward:
//
//   struct BlockImpl : torch::nn::Module, lockstep::Hookable<at::Tensor(const at::Tensor&)> {
//     at::Tensor compute(const at::Tensor& x) override;   // was: forward
//   };
//
// forward(), which the rest of the model calls as before, runs the hooks around compute(). Without
// hooks it costs one virtual call. Arguments of reference type are passed on as they are.
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

// Takes a hook away again; without that it stays as long as the child. Copies are handles of the
// same hook. A handle that goes does nothing.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::shared_ptr<internal::HookPlace> place) : place_(std::move(place)) {}
  // Not while the child runs on another thread. Nothing if it is gone, or the child is.
  void remove() {
    if (place_) std::exchange(place_, nullptr)->remove();
  }

 private:
  std::shared_ptr<internal::HookPlace> place_;
};

// The modules that these mean, by their names in model.named_modules() and in its order: a name, or one
// in which a * stands for one part between dots: "model.layers.*". Throws InvalidArgument: a name that
// matches nothing (with the nearest), none at all.
std::vector<std::string> modules_named(const torch::nn::Module& model,
                                       const std::vector<std::string>& names);
// A model's layers: those that are Hookable from a tensor to a tensor and stand in a list (the last part
// of their name is a number), the outermost, in the model's order.
std::vector<std::string> layers_of(const torch::nn::Module& model);

// The module of that name in model.named_modules(). Throws InvalidArgument that names the nearest.
std::shared_ptr<torch::nn::Module> find_module(const torch::nn::Module& model,
                                               const std::string& path);

// Puts `hook` around the forward of the child at `path`, outside of those that it has. Parameters,
// buffers and names stay as they are. Throws InvalidArgument if there is no such child, no door to
// it, or it shares its weight with another layer of its kind; the model is then as it was. Does not
// communicate; while nothing runs the model.
HookHandle wrap_forward(torch::nn::Module& model, const std::string& path, ForwardHook hook);

// The same for a Hookable, with all of its arguments.
template <typename Signature>
HookHandle wrap_forward(torch::nn::Module& model, const std::string& path,
                        typename Hookable<Signature>::Hook hook);

struct ReplaceOptions {
  // The parameters and buffers of the child that goes become empty, but for those that the model or
  // the replacement have as well. It may still be held by its type in the model, but is not computed.
  bool release_memory = false;
};

// Calls `replacement` where the model calls the child at `path`, and registers it in its place: its
// parameters and buffers take over the child's names, for optimizers, state dicts and to(). It is a
// module from a tensor to a tensor, and may call the child that it replaces: an adapter around it.
// Throws as wrap_forward() does.
template <typename M>
void replace_child(torch::nn::Module& model, const std::string& path,
                   const torch::nn::ModuleHolder<M>& replacement,
                   const ReplaceOptions& options = {});
void replace_child(torch::nn::Module& model, const std::string& path,
                   const torch::nn::Sequential& replacement, const ReplaceOptions& options = {});
// Of an AnyModule, which holds what it calls: none that calls the child. Throws InvalidArgument.
void replace_child(torch::nn::Module& model, const std::string& path,
                   torch::nn::AnyModule replacement, const ReplaceOptions& options = {});

// The parameters below `path` get no gradients any more, and batch norms there use their running
// statistics and leave them alone, also after model->train(); they still count batches, and still
// refuse a single value a channel in training, as libtorch's do. Before DistributedDataParallel and
// the optimizer, which then pass the parameters by. Throws InvalidArgument if there is no such
// child, or a module with running statistics below it that is no BatchNorm1d to 3d; nothing has
// changed then.
void freeze_child(torch::nn::Module& model, const std::string& path);

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

[[noreturn]] void refuse_signature(const torch::nn::Module& module, const std::string& path);

// What is put in a child's place. The model holds `module`, and so does `forward`, but for one that
// calls the child: it would hold itself. `entry` calls it for a Sequential's list.
struct Replacement {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
  std::function<torch::nn::AnyModule()> entry;
};
void replace_child(torch::nn::Module& model, const std::string& path,
                   const Replacement& replacement, const ReplaceOptions& options);
bool calls_child(const torch::nn::Module& model, const std::string& path,
                 const torch::nn::Module& replacement);
// Throws Error if there is nothing.
void check_held(const void* held);

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

}  // namespace lockstep
