#include "lockstep/parallel/ddp/sync_batch_norm.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/sync_batch_norm_math.h"

namespace lockstep {

// The layers that were converted together, or a SyncBatchNorm.
struct internal::SyncLayers {
  Communicator comm;
  std::vector<std::string> names;
  std::function<void(int64_t numbers)> before_exchange;
};

namespace {

using internal::SyncLayers;
namespace math = sync_batch_norm;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

// Above autograd and autocast, and used by nothing in libtorch: it is kept for out-of-tree deferred
// initialisation of modules, which does not go together with tensors that have values.
constexpr auto kMark = c10::DispatchKey::DeferredInit;

// Which layer.
struct Layer {
  std::shared_ptr<SyncLayers> layers;
  size_t index = 0;
};

// Tags tell layers and directions apart; 0 is a rank that only stands in.
double forward_tag(const Layer& layer) {
  return 1.0 + static_cast<double>(layer.index);
}
double backward_tag(const Layer& layer) {
  return -forward_tag(layer);
}
std::string tag_text(const Layer& layer, double tag) {
  std::string text = tag < 0 ? "the backward of " : "the forward of ";
  const double index = std::abs(tag) - 1;
  const auto& names = layer.layers->names;
  return text + (index < static_cast<double>(names.size())
                     ? "'" + names[static_cast<size_t>(index)] + "'"
                     : "a layer that this rank does not have");
}

at::Tensor exchange(const Layer& layer, const at::Tensor& row, int64_t tag_column) {
  Communicator& comm = layer.layers->comm;
  if (layer.layers->before_exchange) layer.layers->before_exchange(row.numel());
  at::Tensor rows = exchange_statistics(comm, row);
  if (!rows.is_cpu()) return rows;  // a look would wait for the device
  const auto values = rows.accessor<double, 2>();
  const double mine = values[comm.rank()][tag_column];
  for (int64_t r = 0; r < rows.size(0); ++r) {
    const double other = values[r][tag_column];
    if (other == mine || other == 0) continue;
    throw Mismatch("SyncBatchNorm: rank " + std::to_string(comm.rank()) + " is at " +
                   tag_text(layer, mine) + " and rank " + std::to_string(r) + " at " +
                   tag_text(layer, other) +
                   "; all ranks must run the same layers, in the same order");
  }
  return rows;
}

struct Call {
  at::Tensor running_mean, running_var;  // may be undefined
  double momentum = 0;
  double eps = 0;
  Layer layer;
};

class Function : public torch::autograd::Function<Function> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const OptionalTensor& weight, const OptionalTensor& bias,
                            const std::shared_ptr<Call>& call) {
    const c10::impl::ExcludeDispatchKeyGuard as_they_are(c10::autocast_dispatch_keyset);
    const at::Tensor rows =
        exchange(call->layer, math::forward_row(input, forward_tag(call->layer)),
                 /*tag_column=*/1);
    const math::Statistics statistics = math::combine_forward(rows, input);
    if (rows.is_cpu() && statistics.count.item<double>() == 1) {
      throw InvalidArgument(
          "SyncBatchNorm: the ranks have one value per channel all together, whose variance is not "
          "defined; train with a larger batch, or call eval()");
    }
    math::update_running(statistics, call->momentum, call->running_mean, call->running_var);
    ctx->save_for_backward({input, weight.value_or(at::Tensor()), statistics.mean,
                            statistics.variance, statistics.count});
    ctx->saved_data["weight"] = weight.has_value();
    ctx->saved_data["bias"] = bias.has_value();
    auto state = c10::make_intrusive<State>();
    state->call = call;
    ctx->saved_data["state"] = c10::IValue::make_capsule(std::move(state));
    return math::normalize(input, statistics, weight.value_or(at::Tensor()),
                           bias.value_or(at::Tensor()), call->eps);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw InvalidArgument(
          "SyncBatchNorm has no second derivatives: call backward() without create_graph");
    }
    const c10::impl::ExcludeDispatchKeyGuard as_they_are(c10::autocast_dispatch_keyset);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const math::Statistics statistics{.mean = saved[2], .variance = saved[3], .count = saved[4]};
    const auto state =
        c10::static_intrusive_pointer_cast<State>(ctx->saved_data["state"].toCapsule());
    Call& call = *state->call;
    const at::Tensor grad = grads[0].to(input.scalar_type());

    const math::BackwardSums sums = math::backward_sums(grad, input, statistics, call.eps);
    variable_list result(4);
    if (ctx->needs_input_grad(0)) {
      const at::Tensor rows =
          exchange(call.layer, math::backward_row(sums, backward_tag(call.layer)),
                   /*tag_column=*/0);
      result[0] = math::input_gradient(grad, input, weight, statistics, rows, call.eps);
    }
    // Autograd casts them to the parameters' type.
    if (ctx->saved_data["weight"].toBool()) result[1] = sums.weight;
    if (ctx->saved_data["bias"].toBool()) result[2] = sums.bias;
    return result;
  }

 private:
  struct State : torch::CustomClassHolder {
    std::shared_ptr<Call> call;
  };
};

at::Tensor normalize_in_training(const at::Tensor& input, const OptionalTensor& weight,
                                 const OptionalTensor& bias, const at::Tensor& running_mean,
                                 const at::Tensor& running_var, double momentum, double eps,
                                 const Layer& layer) {
  if (layer.layers->comm.size() == 1) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/true,
                          momentum, eps, at::globalContext().userEnabledCuDNN());
  }
  const auto some = [](const OptionalTensor& tensor) {
    return tensor && tensor->defined() ? tensor : std::nullopt;
  };
  return Function::apply(input, some(weight), some(bias),
                         std::make_shared<Call>(Call{.running_mean = running_mean,
                                                     .running_var = running_var,
                                                     .momentum = momentum,
                                                     .eps = eps,
                                                     .layer = layer}));
}

// The mark.

struct MarkMeta final : c10::BackendMeta {
  Layer layer;
  bool is_carrier = false;  // the tensor is there for the mark alone
};

MarkMeta* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kMark)) return nullptr;
  return dynamic_cast<MarkMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}
MarkMeta* mark_of(const OptionalTensor& tensor) {
  return tensor ? mark_of(*tensor) : nullptr;
}

// In place: whoever holds the tensor sees it.
void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<c10::BackendMeta> mark) {
  const at::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  at::Tensor marked = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(plain.storage()), plain.key_set().add(kMark), plain.dtype());
  c10::TensorImpl* const impl = marked.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(plain.sizes(), plain.strides(), plain.storage_offset());
  impl->set_backend_meta(std::move(mark));
  tensor.set_data(marked);  // takes over all of that, and leaves autograd's part alone
}

at::Tensor value_or_none(const OptionalTensor& tensor) {
  return tensor ? *tensor : at::Tensor();
}

at::Tensor marked_batch_norm(const at::Tensor& input, const OptionalTensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, bool training, double momentum,
                             double eps, bool cudnn) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMark);
  const MarkMeta* mark = mark_of(running_mean);
  const bool is_carrier = mark != nullptr && mark->is_carrier;
  if (mark == nullptr) mark = mark_of(running_var);
  if (mark == nullptr) mark = mark_of(weight);
  const OptionalTensor mean = is_carrier ? OptionalTensor() : running_mean;
  if (mark == nullptr || !training)
    return at::batch_norm(input, weight, bias, mean, running_var, training, momentum, eps, cudnn);
  return normalize_in_training(input, weight, bias, value_or_none(mean), value_or_none(running_var),
                               momentum, eps, mark->layer);
}

at::Tensor passed_on(const at::Tensor& from, at::Tensor to) {
  if (MarkMeta* mark = mark_of(from); mark != nullptr && !to.is_same(from))
    set_mark(to, c10::intrusive_ptr<c10::BackendMeta>::reclaim_copy(mark));
  return to;
}

// Module::clone() and Module::to() put what these return into the layer.
at::Tensor marked_clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMark);
  return passed_on(self, at::clone(self, format));
}
at::Tensor marked_to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout, std::optional<at::Device> device,
                          std::optional<bool> pin_memory, bool non_blocking,
                          std::optional<at::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMark);
  return passed_on(self,
                   at::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format));
}

// Once a process, when the first model is converted: it takes a few milliseconds, which programs
// without SyncBatchNorm do not pay. Never taken back, since marked tensors may outlive anything.
void register_kernels() {
  static const bool registered = [] {
    static auto* const every =
        new torch::Library(torch::Library::IMPL, "_", kMark, __FILE__, __LINE__);
    every->fallback(torch::CppFunction::makeFallthrough());
    static auto* const some =
        new torch::Library(torch::Library::IMPL, "aten", kMark, __FILE__, __LINE__);
    some->impl("batch_norm", &marked_batch_norm);
    some->impl("clone", &marked_clone);
    some->impl("_to_copy", &marked_to_copy);
    return true;
  }();
  (void)registered;
}

struct LayerTensors {
  at::Tensor* weight = nullptr;
  at::Tensor* running_mean = nullptr;
  at::Tensor* running_var = nullptr;
};

// None of them for another kind of module.
LayerTensors tensors_of(torch::nn::Module& module) {
  const auto of = [](auto* layer) {
    return LayerTensors{.weight = &layer->weight,
                        .running_mean = &layer->running_mean,
                        .running_var = &layer->running_var};
  };
  if (auto* layer = dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) return of(layer);
  if (auto* layer = dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) return of(layer);
  if (auto* layer = dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module)) return of(layer);
  return {};
}

const MarkMeta* mark_of(const LayerTensors& tensors) {
  for (const at::Tensor* tensor : {tensors.running_mean, tensors.running_var, tensors.weight}) {
    if (tensor == nullptr) continue;
    if (const MarkMeta* mark = mark_of(*tensor)) return mark;
  }
  return nullptr;
}

void mark_layer(const LayerTensors& tensors, const Layer& layer) {
  const auto mark = c10::make_intrusive<MarkMeta>();
  mark->layer = layer;
  const MarkMeta* before = mark_of(*tensors.running_mean);
  if (tensors.running_var->defined()) {
    set_mark(*tensors.running_mean, mark);
    set_mark(*tensors.running_var, mark);
    return;
  }
  if (tensors.weight->defined()) {
    set_mark(*tensors.weight, mark);
    return;
  }
  // Nothing of its own to mark: a tensor that is no buffer, in a member that is not used.
  LOCKSTEP_CHECK(!tensors.running_mean->defined() || (before != nullptr && before->is_carrier),
                 "a layer without running variance has no running mean");
  mark->is_carrier = true;
  at::Tensor carrier = at::zeros({1});
  set_mark(carrier, mark);
  *tensors.running_mean = carrier;
}

}  // namespace

at::Tensor exchange_statistics(Communicator& comm, const at::Tensor& row) {
  return comm.all_gather(row.unsqueeze(0));
}

int64_t convert_sync_batch_norm(torch::nn::Module& model, const Communicator& comm) {
  register_kernels();
  const auto layers =
      std::make_shared<SyncLayers>(SyncLayers{.comm = comm, .names = {}, .before_exchange = {}});
  for (const auto& item : model.named_modules()) {
    const LayerTensors tensors = tensors_of(*item.value());
    if (tensors.weight == nullptr) continue;
    mark_layer(tensors, {.layers = layers, .index = layers->names.size()});
    layers->names.push_back(item.key().empty() ? item.value()->name() : item.key());
  }
  if (layers->names.empty()) {
    throw InvalidArgument("convert_sync_batch_norm: " + model.name() +
                          " has no torch::nn::BatchNorm1d, BatchNorm2d or BatchNorm3d; is it the "
                          "right model, and are its layers registered?");
  }
  return static_cast<int64_t>(layers->names.size());
}

bool is_sync_batch_norm(const torch::nn::Module& layer) {
  return mark_of(tensors_of(const_cast<torch::nn::Module&>(layer))) != nullptr;
}

SyncBatchNormWatch::SyncBatchNormWatch(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules()) {
    std::shared_ptr<SyncLayers> group;
    if (const auto* own = dynamic_cast<const SyncBatchNormImpl*>(item.value().get())) {
      group = own->layers_;
    } else if (const MarkMeta* mark = mark_of(tensors_of(*item.value()))) {
      group = mark->layer.layers;
      layers_.emplace_back(item.key(), item.value());
    }
    if (group && std::find(groups_.begin(), groups_.end(), group) == groups_.end())
      groups_.push_back(group);
  }
}

void SyncBatchNormWatch::before_exchange(
    const std::function<void(int64_t numbers, int64_t group)>& call) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i]->before_exchange = nullptr;
    if (!call) continue;
    groups_[i]->before_exchange = [call, i](int64_t numbers) {
      call(numbers, static_cast<int64_t>(i));
    };
  }
}

void SyncBatchNormWatch::stand_in(int64_t numbers, int64_t group) {
  exchange_statistics(groups_.at(static_cast<size_t>(group))->comm,
                      at::zeros({numbers}, at::kDouble));
}

void SyncBatchNormWatch::check() const {
  std::string lost;
  for (const auto& [name, layer] : layers_) {
    if (!is_sync_batch_norm(*layer)) lost += (lost.empty() ? "'" : ", '") + name + "'";
  }
  if (lost.empty()) return;
  throw InvalidArgument(
      "SyncBatchNorm: converted before but not any more: " + lost +
      "; somebody has put other tensors in place of the layers' own: copy values into them "
      "(copy_), or call convert_sync_batch_norm again");
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator comm)
    : NormImplBase(options),
      layers_(std::make_shared<SyncLayers>(SyncLayers{
          .comm = std::move(comm), .names = {"SyncBatchNorm"}, .before_exchange = {}})) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    std::ostringstream sizes;
    sizes << input.sizes();
    throw InvalidArgument("SyncBatchNorm(" + std::to_string(options.num_features()) +
                          "): the input is " + sizes.str() + "; it should be [rows, " +
                          std::to_string(options.num_features()) + ", ...]");
  }
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool tracks = options.track_running_stats();
  if (!is_training() && tracks) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/false, 0.0,
                          options.eps(), at::globalContext().userEnabledCuDNN());
  }
  double momentum = options.momentum().value_or(0.0);
  if (is_training() && tracks) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();  // the plain mean
  }
  return normalize_in_training(input, weight, bias, running_mean, running_var, momentum,
                               options.eps(), {.layers = layers_, .index = 0});
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ")";
}

}  // namespace lockstep
