#include "lockstep/hooks/forward_hook.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/hooks/internal/layer_kinds.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/hooks/name_pattern.h"

namespace lockstep::inline v0 {
namespace {

using Module = torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;
using TensorHookable = Hookable<at::Tensor(const at::Tensor&)>;

// The first way, for any signature.

struct TensorFirstPlace final : internal::HookPlace {
  std::weak_ptr<Module> module;
  std::shared_ptr<const void> hook;
  void remove() override {
    const ModulePtr held = module.lock();
    if (auto* hookable = dynamic_cast<internal::TensorFirst*>(held.get()))
      hookable->remove_tensor_hook(hook);
  }
};

// The second way.

class FunctionHook final : public hooks::LayerHook {
 public:
  explicit FunctionHook(ForwardHook hook, const Module* replacement = nullptr)
      : hook_(std::move(hook)), replacement_(replacement) {}
  const Module* replacement() const override { return replacement_; }
  at::Tensor forward(hooks::LayerCall& call) override {
    return hook_([&call](const at::Tensor& input) { return call.compute(input); }, call.input());
  }

 private:
  ForwardHook hook_;
  const Module* replacement_;  // owned by the model; only compared
};

struct LayerPlace final : internal::HookPlace {
  std::weak_ptr<Module> layer;
  std::shared_ptr<hooks::LayerHook> hook;
  void remove() override {
    if (const ModulePtr held = layer.lock()) hooks::remove_hook(*held, hook.get());
  }
};

// The third way.

class StandInImpl;

// The hooks of a Sequential itself, which calls its children one after another: the first one's
// stand-in runs them all, the others pass their input on.
struct Whole {
  internal::HookList<at::Tensor(const at::Tensor&)> hooks;
  std::vector<std::weak_ptr<StandInImpl>> children;  // owned by the Sequential's list
};

// Takes a child's place in a Sequential's list. The Sequential has the child itself registered, so
// names and parameters are the child's.
class StandInImpl : public Module, public TensorHookable {
 public:
  explicit StandInImpl(torch::nn::AnyModule child)
      : Module(child.ptr()->name()), child_(std::move(child)) {}

  at::Tensor forward(const at::Tensor& input) {
    if (!whole_ || whole_->hooks.empty()) return TensorHookable::forward(input);
    if (!is_first_) return input;
    const auto all = [this](const at::Tensor& given) {
      at::Tensor x = given;
      for (const auto& child : whole_->children)
        if (const auto held = child.lock()) x = held->TensorHookable::forward(x);
      return x;
    };
    return whole_->hooks.call(all, input);
  }

  // Sequential::clone() registers the result, so it must be the child in everything except its
  // forward. The Sequential's own hooks are not copied.
  ModulePtr clone(const std::optional<at::Device>& device) const override {
    auto copy = std::make_shared<StandInImpl>(child_.clone(device));
    copy->TensorHookable::operator=(*this);
    copy->take_over_names();
    return copy;
  }

  void train(bool on) override {
    Module::train(on);
    child_.ptr()->train(on);
  }

  // Drops the child with its hooks.
  void replace(torch::nn::AnyModule child) {
    child_ = std::move(child);
    forward_hooks() = {};
  }
  const std::shared_ptr<Whole>& whole() const { return whole_; }
  void join(std::shared_ptr<Whole> whole, bool is_first) {
    whole_ = std::move(whole);
    is_first_ = is_first;
  }

 protected:
  at::Tensor compute(const at::Tensor& input) override { return child_.forward(input); }

 private:
  void take_over_names() {
    const ModulePtr child = child_.ptr();
    for (const auto& item : child->named_children()) register_module(item.key(), item.value());
    for (const auto& item : child->named_parameters(/*recurse=*/false))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : child->named_buffers(/*recurse=*/false))
      register_buffer(item.key(), item.value());
  }

  torch::nn::AnyModule child_;
  std::shared_ptr<Whole> whole_;
  bool is_first_ = false;
};

std::shared_ptr<StandInImpl> stand_in_of(const torch::nn::AnyModule& entry) {
  return std::dynamic_pointer_cast<StandInImpl>(entry.ptr());
}

std::shared_ptr<StandInImpl> make_stand_in(torch::nn::AnyModule& entry) {
  auto found = stand_in_of(entry);
  if (found) return found;
  found = std::make_shared<StandInImpl>(entry);
  entry = torch::nn::AnyModule(found);
  return found;
}

std::shared_ptr<Whole> whole_of(torch::nn::SequentialImpl& sequential) {
  const auto first = make_stand_in(*sequential.begin());
  if (first->whole()) return first->whole();
  auto whole = std::make_shared<Whole>();
  for (torch::nn::AnyModule& entry : sequential) {
    const auto child = make_stand_in(entry);
    child->join(whole, child == first);
    whole->children.push_back(child);
  }
  return whole;
}

struct WholePlace final : internal::HookPlace {
  std::weak_ptr<Whole> whole;
  std::shared_ptr<const TensorHookable::Hook> hook;
  void remove() override {
    if (const auto held = whole.lock()) held->hooks.remove(hook);
  }
};

struct Place {
  ModulePtr parent;  // null: the model itself
  std::string name;  // in the parent
  ModulePtr child;
};

Place find_place(const Module& model, const std::string& path) {
  Place place{.parent = nullptr, .name = path, .child = find_module(model, path)};
  const size_t dot = path.rfind('.');
  if (dot != std::string::npos) place.name = path.substr(dot + 1);
  place.parent = dot == std::string::npos ? nullptr : find_module(model, path.substr(0, dot));
  return place;
}

// The child's entry in its parent's list, if that is a Sequential.
torch::nn::AnyModule* entry_in_sequential(Module* parent, const std::string& name) {
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(parent);
  if (sequential == nullptr) return nullptr;
  const auto children = sequential->named_children();
  for (size_t i = 0; i < children.size(); ++i)
    if (children[i].key() == name) return &*(sequential->begin() + static_cast<std::ptrdiff_t>(i));
  return nullptr;
}

[[noreturn]] void refuse(Module& child, const std::string& path) {
  std::string reason;
  if (hooks::internal::tensors_of(child))  // of a kind that could be hooked otherwise
    reason = child.name() + " " + hooks::cannot_hook(child) + "; ";
  throw InvalidArgument(
      "there is no way in at '" + path + "' (" + child.name() + "): " + reason +
      "derive its class from lockstep::Hookable<at::Tensor(const at::Tensor&)> and call its "
      "forward compute, or hold it in a torch::nn::Sequential");
}

// Connects a replaced child's forward to the replacement. One that calls the former child, as an
// adapter around it does, gets the result of its computation.
ForwardHook call_of(Forward forward) {
  auto shared = std::make_shared<const Forward>(std::move(forward));
  return [shared](const Forward& former, const at::Tensor& input) {
    thread_local std::vector<const void*> running;
    if (std::find(running.begin(), running.end(), shared.get()) != running.end())
      return former(input);
    struct Running {
      explicit Running(const void* what) { running.push_back(what); }
      ~Running() { running.pop_back(); }
    } const running_now(shared.get());
    return (*shared)(input);
  };
}

// Releases memory with no other owner in the model.
void release(Module& former, const Module& model, const Module& instead) {
  const at::NoGradGuard no_grad;
  std::set<const c10::TensorImpl*> kept;
  for (const Module* const holder : {&model, &instead}) {
    for (const at::Tensor& tensor : holder->parameters()) kept.insert(tensor.unsafeGetTensorImpl());
    for (const at::Tensor& tensor : holder->buffers()) kept.insert(tensor.unsafeGetTensorImpl());
  }
  const auto empty = [&kept](const at::Tensor& tensor) {
    if (tensor.dim() == 0 || kept.count(tensor.unsafeGetTensorImpl()) != 0) return;
    tensor.mutable_grad().reset();
    std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), 0);
    if (tensor.dim() > 1) sizes[0] = tensor.size(0);  // Embedding compares with its padding's row
    hooks::set_data(tensor, at::empty(sizes, tensor.options().requires_grad(false)));
  };
  for (const at::Tensor& tensor : former.parameters()) empty(tensor);
  for (const at::Tensor& tensor : former.buffers()) empty(tensor);
}

// Calls a Sequential from another one's list, because no AnyModule can hold it.
class CalledImpl final : public Module {
 public:
  explicit CalledImpl(torch::nn::Sequential inner)
      : Module("torch::nn::Sequential"), inner_(std::move(inner)) {
    for (const auto& item : inner_->named_children()) register_module(item.key(), item.value());
  }
  at::Tensor forward(const at::Tensor& input) { return inner_->forward(input); }
  void train(bool on) override {
    Module::train(on);
    inner_->train(on);
  }
  ModulePtr clone(const std::optional<at::Device>& device) const override {
    return std::make_shared<CalledImpl>(torch::nn::Sequential(
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(inner_->clone(device))));
  }

 private:
  torch::nn::Sequential inner_;
};

// All registrations of the child in the model.
void register_instead(Module& model, const ModulePtr& child, const ModulePtr& instead) {
  std::vector<Module*> holders{&model};
  for (const ModulePtr& module : model.modules(/*include_self=*/false))
    holders.push_back(module.get());
  for (Module* const holder : holders) {
    if (holder == instead.get()) continue;
    for (const auto& item : holder->named_children())
      if (item.value() == child) holder->replace_module(item.key(), instead);
  }
}

// Refuses a layer whose tensor another layer of its kind in the model uses as well, because that
// one would be hooked, too.
void check_own_tensors(const Module& model, const ModulePtr& child, const std::string& path) {
  const auto own = hooks::internal::tensors_of(*child);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (item.value() == child) continue;
    const auto other = hooks::internal::tensors_of(*item.value());
    if (!other || other->kind != own->kind) continue;
    for (const auto& mine : own->marked)
      for (const auto& theirs : other->marked)
        if (mine.tensor->is_same(*theirs.tensor))
          throw InvalidArgument("'" + path + "' shares a tensor with '" + item.key() +
                                "', a layer of the same kind, which a hook could not tell from it");
  }
}

// Evaluation mode, whatever mode the module is set to.
class FrozenNorm final : public hooks::LayerHook {
 public:
  at::Tensor forward(hooks::LayerCall& call) override {
    if (call.arguments()[3].isTensor()) call.arguments()[5] = false;  // running_mean, training
    return call.compute(call.input());
  }
};

}  // namespace

std::vector<std::string> modules_named(const Module& model, const std::vector<std::string>& names) {
  if (names.empty()) throw InvalidArgument("no module is named");
  const std::vector<std::string> all = model.named_modules("", /*include_self=*/false).keys();
  for (const std::string& pattern : names) {
    const auto meant = [&](const std::string& name) { return is_named(name, pattern); };
    if (std::any_of(all.begin(), all.end(), meant)) continue;
    if (pattern.find('*') == std::string::npos) find_module(model, pattern);  // throws
    throw InvalidArgument("no module of " + model.name() + " is called '" + pattern + "'");
  }
  std::vector<std::string> found;
  for (const std::string& name : all) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& pattern) { return is_named(name, pattern); }))
      found.push_back(name);
  }
  return found;
}

std::vector<std::string> layers_of(const Module& model) {
  std::vector<std::string> found;
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto& item : modules) {
    const std::string& name = item.key();
    const std::string last = name.substr(name.rfind('.') + 1);
    if (last.find_first_not_of("0123456789") != std::string::npos) continue;
    if (dynamic_cast<internal::TensorFirst*>(item.value().get()) == nullptr) continue;
    const bool below = std::any_of(found.begin(), found.end(), [&](const std::string& above) {
      return name.starts_with(above + ".");
    });
    if (!below) found.push_back(name);
  }
  return found;
}

ModulePtr find_module(const Module& model, const std::string& path) {
  const auto modules = model.named_modules("", /*include_self=*/false);
  if (const ModulePtr* found = modules.find(path)) return *found;
  std::vector<std::string> names = modules.keys();
  if (path.empty()) {
    throw InvalidArgument(
        "find_module: the model itself is not held by another module; name one of "
        "its children");
  }
  const std::string near = nearest_name(path, names);
  throw InvalidArgument("find_module: " + model.name() + " has no module '" + path + "'" +
                        (near.empty() ? std::string() : "; did you mean '" + near + "'?"));
}

namespace internal {

void refuse_signature(const Module& module, const std::string& path) {
  throw InvalidArgument("wrap_forward: '" + path + "' (" + module.name() +
                        ") is no lockstep::Hookable of the signature that is asked for");
}

}  // namespace internal

namespace {

// `replacement`: the module that the hook calls instead of the child, if that is its purpose.
HookHandle wrap(Module& model, const Place& place, const std::string& path, ForwardHook hook,
                const Module* replacement) {
  if (dynamic_cast<TensorHookable*>(place.child.get()) != nullptr)
    return wrap_forward<at::Tensor(const at::Tensor&)>(model, path, std::move(hook));
  if (auto* hookable = dynamic_cast<internal::TensorFirst*>(place.child.get())) {
    auto at = std::make_shared<TensorFirstPlace>();
    at->module = place.child;
    at->hook = hookable->add_tensor_hook(std::move(hook));
    return HookHandle(std::move(at));
  }
  if (hooks::cannot_hook(*place.child).empty()) {
    check_own_tensors(model, place.child, path);
    auto at = std::make_shared<LayerPlace>();
    at->layer = place.child;
    at->hook = std::make_shared<FunctionHook>(std::move(hook), replacement);
    hooks::add_hook(*place.child, at->hook);
    return HookHandle(std::move(at));
  }
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(place.child.get());
  if (sequential != nullptr && !sequential->is_empty()) {
    auto at = std::make_shared<WholePlace>();
    const auto whole = whole_of(*sequential);
    at->whole = whole;
    at->hook = whole->hooks.add(std::move(hook));
    return HookHandle(std::move(at));
  }
  Module* const parent = place.parent ? place.parent.get() : &model;
  torch::nn::AnyModule* const entry = entry_in_sequential(parent, place.name);
  if (entry == nullptr) refuse(*place.child, path);
  auto at = std::make_shared<internal::HookableHook<at::Tensor(const at::Tensor&)>>();
  const auto child = make_stand_in(*entry);
  at->module = child;
  at->hook = child->forward_hooks().add(std::move(hook));
  return HookHandle(std::move(at));
}

}  // namespace

HookHandle wrap_forward(Module& model, const std::string& path, ForwardHook hook) {
  return wrap(model, find_place(model, path), path, std::move(hook), nullptr);
}

bool internal::calls_child(const Module& model, const std::string& path,
                           const Module& replacement) {
  const ModulePtr child = find_module(model, path);
  const auto inner = replacement.modules(/*include_self=*/false);
  return std::find(inner.begin(), inner.end(), child) != inner.end();
}

void internal::check_held(const void* held) {
  if (held == nullptr)
    throw Error("replace_child: the module that was put in a child's place is gone with its model");
}

void internal::replace_child(Module& model, const std::string& path, const Replacement& replacement,
                             const ReplaceOptions& options) {
  const Place place = find_place(model, path);
  Module* const parent = place.parent ? place.parent.get() : &model;
  const ModulePtr& instead = replacement.module;
  if (torch::nn::AnyModule* const entry = entry_in_sequential(parent, place.name)) {
    if (const auto held = stand_in_of(*entry))
      held->replace(replacement.entry());
    else
      *entry = replacement.entry();
    parent->replace_module(place.name, instead);
  } else {
    wrap(model, place, path, call_of(replacement.forward), instead.get());
    register_instead(model, place.child, instead);
  }
  instead->train(place.child->is_training());
  if (options.release_memory) release(*place.child, model, *instead);
}

void replace_child(Module& model, const std::string& path, torch::nn::AnyModule replacement,
                   const ReplaceOptions& options) {
  if (replacement.is_empty()) throw InvalidArgument("replace_child: an empty module");
  if (internal::calls_child(model, path, *replacement.ptr()))
    throw InvalidArgument("replace_child: the replacement calls '" + path +
                          "' itself: give it as its holder, not as an AnyModule");
  const auto shared = std::make_shared<torch::nn::AnyModule>(std::move(replacement));
  internal::replace_child(
      model, path,
      {.module = shared->ptr(),
       .forward = [shared](const at::Tensor& input) { return shared->forward(input); },
       .entry = [shared] { return *shared; }},
      options);
}

void replace_child(Module& model, const std::string& path, const torch::nn::Sequential& replacement,
                   const ReplaceOptions& options) {
  const auto& module = replacement.ptr();
  const bool calls_child = internal::calls_child(model, path, *module);
  const auto forward = [weak = std::weak_ptr(module),
                        kept = calls_child ? nullptr : module](const at::Tensor& input) {
    const auto held = weak.lock();
    internal::check_held(held.get());
    return held->forward(input);
  };
  internal::replace_child(
      model, path,
      {.module = replacement.ptr(),
       .forward = forward,
       .entry = [&] { return torch::nn::AnyModule(std::make_shared<CalledImpl>(replacement)); }},
      options);
}

void freeze_child(Module& model, const std::string& path) {
  const ModulePtr child = find_module(model, path);
  for (const ModulePtr& module : child->modules()) {
    const auto tensors = hooks::internal::tensors_of(*module);
    const bool is_known = tensors && tensors->kind == hooks::internal::Kind::kBatchNorm;
    if (!is_known && module->named_buffers(/*recurse=*/false).contains("running_mean"))
      throw InvalidArgument("freeze_child: " + module->name() + " below '" + path +
                            "' has running statistics and is none of libtorch's BatchNorm1d to 3d; "
                            "freeze what is around it");
  }
  for (const at::Tensor& parameter : child->parameters()) parameter.requires_grad_(false);
  for (const ModulePtr& module : child->modules()) {
    const auto tensors = hooks::internal::tensors_of(*module);
    if (!tensors || tensors->kind != hooks::internal::Kind::kBatchNorm) continue;
    const auto present = hooks::hooks_of(*module);
    const bool is_frozen = std::any_of(present.begin(), present.end(), [](const auto& hook) {
      return dynamic_cast<const FrozenNorm*>(hook.get()) != nullptr;
    });
    if (!is_frozen) hooks::add_hook(*module, std::make_shared<FrozenNorm>());
  }
}

}  // namespace lockstep::inline v0
