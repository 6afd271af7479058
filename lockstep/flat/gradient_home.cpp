#include "lockstep/flat/gradient_home.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <utility>

namespace lockstep::inline v0::flat {
namespace {

using Arrived = std::function<void(const at::Tensor&)>;

class ArrivalHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit ArrivalHook(std::weak_ptr<Arrived> arrived) : arrived_(std::move(arrived)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    if (const auto arrived = arrived_.lock()) (*arrived)(inputs.front());
    return outputs;
  }

 private:
  std::weak_ptr<Arrived> arrived_;
};

}  // namespace

at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes,
                  at::IntArrayRef strides) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + offset, sizes);
}

bool lies_in(const at::Tensor& gradient, const at::Tensor& view) {
  if (!gradient.defined() || gradient.is_sparse() ||
      gradient.const_data_ptr() != view.const_data_ptr() || gradient.sizes() != view.sizes() ||
      gradient.scalar_type() != view.scalar_type())
    return false;
  for (int64_t d = 0; d < gradient.dim(); ++d) {
    if (gradient.size(d) != 1 && gradient.stride(d) != view.stride(d)) return false;
  }
  return true;
}

bool kept_by_others(const at::Tensor& gradient, const at::Tensor& passed) {
  size_t own = 1;
  if (passed.defined() && passed.is_alias_of(gradient)) {
    ++own;
    // The gradient of a transposed weight is a view, which holds its base.
    if (passed.is_view() && passed._base().use_count() == 1) ++own;
  }
  return gradient.storage().use_count() > own || gradient.use_count() > 1;
}

// Tensor::copy_ takes up to twice as long for tensors of the same layout.
void move_into(const at::Tensor& view, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (gradient.is_sparse()) {
    view.copy_(gradient.to_dense());
    return;
  }
  const bool alike =
      gradient.sizes() == view.sizes() && gradient.is_non_overlapping_and_dense() &&
      (gradient.strides() == view.strides() || (gradient.is_contiguous() && view.is_contiguous()));
  if (alike && gradient.is_cpu() && view.is_cpu() && gradient.scalar_type() == view.scalar_type()) {
    std::memmove(view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
    return;
  }
  view.copy_(gradient);
}

std::shared_ptr<void> on_gradient(const at::Tensor& parameter, Arrived arrived) {
  struct Handle {
    std::shared_ptr<Arrived> arrived;
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
  };
  auto handle = std::make_shared<Handle>();
  handle->arrived = std::make_shared<Arrived>(std::move(arrived));
  handle->accumulator = torch::autograd::impl::grad_accumulator(parameter);
  handle->accumulator->add_post_hook(std::make_unique<ArrivalHook>(handle->arrived));
  return handle;
}

}  // namespace lockstep::inline v0::flat
