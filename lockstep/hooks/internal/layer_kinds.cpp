#include "lockstep/hooks/internal/layer_kinds.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <typeinfo>
#include <utility>
#include <variant>

#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::inline v0::hooks::internal {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The whole call of a hooked layer: its hooks, and inside of them `compute`.
at::Tensor run(
    const Mark::Entry& entry, const at::Tensor& input, LayerCall::Arguments arguments,
    const std::function<at::Tensor(const at::Tensor&, const LayerCall::Arguments&)>& compute) {
  const std::shared_ptr<const LayerHooks> hooks = entry.hooks;  // a hook may remove itself
  const LayerCall::Compute innermost = [&](const at::Tensor& x) { return compute(x, arguments); };
  return LayerCall(*hooks, input, arguments, innermost).compute(input);
}

// Operations that are the whole layer: the argument `kInput` is the layer's input.
template <Kind kKind, size_t kInput>
void whole_layer(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<Mark::Entry> found;
  for (size_t i = 0; i < count; ++i) {
    IValue& argument = torch::jit::peek(*stack, i, count);
    if (i == kInput || !argument.isTensor()) continue;
    const Mark::Entry* const entry = entry_of(argument.toTensor(), kKind);
    if (entry == nullptr || entry->role == Role::kBias) continue;
    if (!found) found = *entry;
    if (entry->role == Role::kCarrier) argument = IValue();
  }
  if (!found) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    op.callBoxed(stack);
    return;
  }
  const LayerCall::Arguments arguments = torch::jit::pop(*stack, count);
  const at::Tensor input = arguments[kInput].toTensor();
  stack->emplace_back(
      run(*found, input, arguments, [&op](const at::Tensor& x, LayerCall::Arguments values) {
        const c10::impl::ExcludeDispatchKeyGuard below(kKey);
        // addmm without the bias.
        if (kKind == Kind::kLinear && kInput == 1 && values[0].isNone())
          return at::matmul(x, values[2].toTensor());
        values[kInput] = x;
        op.callBoxed(&values);
        return values.at(0).toTensor();
      }));
}

// torch::nn::functional::linear uses addmm for matrices with a bias, and otherwise matmul followed,
// with a bias, by an addition in place. The hooks belong around both, so the product of the second
// form waits for its addition: until then it is an empty tensor, which fits nowhere else.
struct PendingProduct {
  c10::weak_intrusive_ptr<c10::TensorImpl> product;
  at::Tensor input, transposed;
  Mark::Entry entry;
};
thread_local std::optional<PendingProduct> pending;

at::Tensor marked_matmul(const at::Tensor& self, const at::Tensor& other) {
  pending.reset();
  const Mark::Entry* const entry = entry_of(other, Kind::kLinear);
  const auto multiply = [&other](const at::Tensor& x) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    return at::matmul(x, other);
  };
  if (entry == nullptr || entry->role != Role::kTransposedWeight) return multiply(self);
  if (!entry->has_bias) {
    return run(*entry, self, {self, other},
               [&multiply](const at::Tensor& x, const auto&) { return multiply(x); });
  }
  const at::Tensor product = at::empty({0}, self.options());
  pending =
      PendingProduct{.product = c10::weak_intrusive_ptr<c10::TensorImpl>(product.getIntrusivePtr()),
                     .input = self,
                     .transposed = other,
                     .entry = *entry};
  return product;
}

// Makes `target`, which no other code has seen yet, the same tensor as `result`: its values and its
// place in the graph.
void become(const at::Tensor& target, at::Tensor result) {
  // A tensor with other owners must not change with the target.
  if (result.use_count() > 1 || result.is_view() || (result.is_leaf() && result.requires_grad()))
    result = result.clone();
  const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(result);
  c10::TensorImpl* const impl = target.unsafeGetTensorImpl();
  target.set_data(result.detach());
  impl->set_version_counter(result.unsafeGetTensorImpl()->version_counter());
  if (edge.function) torch::autograd::impl::set_gradient_edge(target, edge);
}

at::Tensor& marked_add_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const Mark::Entry* const entry = entry_of(other, Kind::kLinear);
  if (entry != nullptr && entry->role == Role::kBias && pending && alpha.equal(1)) {
    const auto product = pending->product.lock();
    if (product && product.get() == self.unsafeGetTensorImpl()) {
      const PendingProduct layer = *std::exchange(pending, std::nullopt);
      const LayerCall::Arguments arguments{layer.input, layer.transposed, other};
      const auto compute = [&](const at::Tensor& x, const LayerCall::Arguments& values) {
        const c10::impl::ExcludeDispatchKeyGuard below(kKey);
        at::Tensor product = at::matmul(x, layer.transposed);
        return values[2].isNone() ? product : product.add_(other);
      };
      become(self, run(layer.entry, layer.input, arguments, compute));
      return self;
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.add_(other, alpha);
}

// The layers.

template <typename Layer>
LayerTensors weighted(Kind kind, Layer& layer) {
  LayerTensors tensors;
  tensors.kind = kind;
  if (layer.weight.defined())
    tensors.marked.push_back({&layer.weight, Role::kWeight});
  else
    tensors.refusal = "has no weight";
  return tensors;
}

template <typename Layer>
LayerTensors convolution(Layer& layer) {
  LayerTensors tensors = weighted(Kind::kConvolution, layer);
  if (!std::holds_alternative<torch::enumtype::kZeros>(layer.options.padding_mode()))
    tensors.refusal = "pads by itself before it convolves";
  return tensors;
}

template <typename Layer>
LayerTensors batch_norm(Layer& layer) {
  LayerTensors tensors;
  tensors.kind = Kind::kBatchNorm;
  if (layer.running_var.defined()) {
    // Optimizers and flat buffers give weights other memory, but not to these.
    tensors.marked = {{&layer.running_mean, Role::kWeight}, {&layer.running_var, Role::kWeight}};
  } else if (layer.weight.defined()) {
    tensors.marked = {{&layer.weight, Role::kWeight}};
  } else {
    tensors.carrier = &layer.running_mean;
  }
  return tensors;
}

template <typename Layer, typename Make>
bool is_a(torch::nn::Module& module, std::optional<LayerTensors>& tensors, const Make& make) {
  auto* const layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return false;
  tensors = make(*layer);
  // A derived class may compute in other ways, which no mark catches; a batch norm must update its
  // running statistics.
  if (tensors->kind != Kind::kBatchNorm && typeid(module) != typeid(Layer))
    tensors->refusal = "has a class of its own, derived from libtorch's";
  return true;
}

}  // namespace

std::optional<LayerTensors> tensors_of(torch::nn::Module& module) {
  namespace nn = torch::nn;
  std::optional<LayerTensors> tensors;
  const auto linear = [](nn::LinearImpl& layer) {
    LayerTensors found = weighted(Kind::kLinear, layer);
    found.has_bias = layer.bias.defined();
    if (found.has_bias) found.marked.push_back({&layer.bias, Role::kBias});
    return found;
  };
  const auto looks_up = [](nn::EmbeddingImpl& layer) {
    LayerTensors found = weighted(Kind::kEmbedding, layer);
    if (layer.options.max_norm()) found.refusal = "changes its rows before it looks them up";
    return found;
  };
  const auto of_kind = [](Kind kind) {
    return [kind](auto& layer) { return weighted(kind, layer); };
  };
  const auto convolves = [](auto& layer) { return convolution(layer); };
  const auto normalizes = [](auto& layer) { return batch_norm(layer); };
  is_a<nn::LinearImpl>(module, tensors, linear) ||
      is_a<nn::Conv1dImpl>(module, tensors, convolves) ||
      is_a<nn::Conv2dImpl>(module, tensors, convolves) ||
      is_a<nn::Conv3dImpl>(module, tensors, convolves) ||
      is_a<nn::ConvTranspose1dImpl>(module, tensors, convolves) ||
      is_a<nn::ConvTranspose2dImpl>(module, tensors, convolves) ||
      is_a<nn::ConvTranspose3dImpl>(module, tensors, convolves) ||
      is_a<nn::EmbeddingImpl>(module, tensors, looks_up) ||
      is_a<nn::BatchNorm1dImpl>(module, tensors, normalizes) ||
      is_a<nn::BatchNorm2dImpl>(module, tensors, normalizes) ||
      is_a<nn::BatchNorm3dImpl>(module, tensors, normalizes) ||
      is_a<nn::LayerNormImpl>(module, tensors, of_kind(Kind::kLayerNorm)) ||
      is_a<nn::GroupNormImpl>(module, tensors, of_kind(Kind::kGroupNorm));
  return tensors;
}

void register_layer_kernels() {
  static const bool registered = [] {
    torch::Library& library = kernels();
    const auto boxed = [&library]<Kind kKind, size_t kInput>(const char* name) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&whole_layer<kKind, kInput>>());
    };
    for (const char* name :
         {"conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding",
          "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"})
      boxed.operator()<Kind::kConvolution, 0>(name);
    boxed.operator()<Kind::kEmbedding, 1>("embedding");
    boxed.operator()<Kind::kBatchNorm, 0>("batch_norm");
    boxed.operator()<Kind::kLayerNorm, 0>("layer_norm");
    boxed.operator()<Kind::kGroupNorm, 0>("group_norm");
    boxed.operator()<Kind::kLinear, 0>("linear");
    boxed.operator()<Kind::kLinear, 1>("addmm");
    library.impl("matmul", &marked_matmul);
    library.impl("add_.Tensor", &marked_add_);
    return true;
  }();
  (void)registered;
}

}  // namespace lockstep::inline v0::hooks::internal
