#include "lockstep/hooks/internal/marks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/t.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::inline v0::hooks::internal {
namespace {

at::Tensor passed_on(const at::Tensor& from, at::Tensor to) {
  if (const Mark* mark = mark_of(from); mark != nullptr && !to.is_same(from))
    set_mark(to, c10::make_intrusive<Mark>(*mark));
  return to;
}

// Module::clone() and Module::to() put the result into the layer.
at::Tensor marked_clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return passed_on(self, at::clone(self, format));
}
at::Tensor marked_to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout, std::optional<at::Device> device,
                          std::optional<bool> pin_memory, bool non_blocking,
                          std::optional<at::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return passed_on(self,
                   at::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format));
}

// torch::nn::functional::linear multiplies by weight.t().
at::Tensor marked_t(const at::Tensor& self) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  at::Tensor result = at::t(self);
  const Mark::Entry* linear = entry_of(self, Kind::kLinear);
  if (linear == nullptr || linear->role != Role::kWeight) return result;
  auto mark = c10::make_intrusive<Mark>();
  mark->entries.push_back(*linear);
  mark->entries.back().role = Role::kTransposedWeight;
  // A view already has its base's keys, and set_data would detach it.
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  if (impl->key_set().has(kKey)) impl->set_backend_meta(std::move(mark));
  return result;
}

}  // namespace

const Mark::Entry* Mark::find(Kind kind) const {
  for (const Entry& entry : entries)
    if (entry.kind == kind) return &entry;
  return nullptr;
}

const Mark* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kKey)) return nullptr;
  return dynamic_cast<const Mark*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

const Mark::Entry* entry_of(const at::Tensor& tensor, Kind kind) {
  const Mark* mark = mark_of(tensor);
  return mark == nullptr ? nullptr : mark->find(kind);
}

void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<Mark> mark) {
  const bool any = mark && !mark->entries.empty();
  if (!any && !tensor.key_set().has(kKey)) return;
  // A tensor made in inference mode remains an inference tensor.
  const c10::InferenceMode mode(tensor.is_inference());
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const at::Tensor plain = tensor.detach();
  const c10::DispatchKeySet keys = any ? plain.key_set().add(kKey) : plain.key_set().remove(kKey);
  at::Tensor marked =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(plain.storage()), keys, plain.dtype());
  c10::TensorImpl* const impl = marked.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(plain.sizes(), plain.strides(), plain.storage_offset());
  if (any) impl->set_backend_meta(std::move(mark));
  tensor.set_data(marked);  // takes over all of that, and leaves autograd's part unchanged
}

void set_entry(const at::Tensor& tensor, Mark::Entry entry) {
  auto mark = c10::make_intrusive<Mark>();
  if (const Mark* before = mark_of(tensor)) {
    for (const Mark::Entry& other : before->entries)
      if (other.kind != entry.kind) mark->entries.push_back(other);
  }
  if (entry.hooks && !entry.hooks->empty()) mark->entries.push_back(std::move(entry));
  set_mark(tensor, std::move(mark));
}

void register_mark_kernels() {
  static const bool registered = [] {
    kernels().impl("clone", &marked_clone);
    kernels().impl("_to_copy", &marked_to_copy);
    kernels().impl("t", &marked_t);
    return true;
  }();
  (void)registered;
}

}  // namespace lockstep::inline v0::hooks::internal
