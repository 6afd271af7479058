#include "lockstep/parallel/ddp/sync_batch_norm.h"

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/parallel/ddp/sync_batch_norm_math.h"

namespace lockstep::inline v0 {

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

// Identifies the layer.
struct Layer {
  std::shared_ptr<SyncLayers> layers;
  size_t index = 0;
};

// Tags identify layers and directions; 0 is a rank that only stands in.
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
  if (!rows.is_cpu()) return rows;  // checking the values would wait for the device
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

class SyncHook final : public hooks::LayerHook {
 public:
  explicit SyncHook(Layer layer) : layer_(std::move(layer)) {}
  const Layer& layer() const { return layer_; }

  at::Tensor forward(hooks::LayerCall& call) override {
    // input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn
    const auto& arguments = call.arguments();
    if (!arguments[5].toBool() || layer_.layers->comm.size() == 1)
      return call.compute(call.input());
    const auto optional = [&arguments](size_t i) {
      return arguments[i].isTensor() ? OptionalTensor(arguments[i].toTensor()) : OptionalTensor();
    };
    return normalize_in_training(call.input(), optional(1), optional(2),
                                 optional(3).value_or(at::Tensor()),
                                 optional(4).value_or(at::Tensor()), arguments[6].toDouble(),
                                 arguments[7].toDouble(), layer_);
  }

 private:
  Layer layer_;
};

bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

std::shared_ptr<const SyncHook> hook_of(const torch::nn::Module& module) {
  if (!is_batch_norm(module)) return nullptr;
  for (const auto& hook : hooks::hooks_of(module))
    if (auto sync = std::dynamic_pointer_cast<const SyncHook>(hook)) return sync;
  return nullptr;
}

}  // namespace

at::Tensor exchange_statistics(Communicator& comm, const at::Tensor& row) {
  return comm.all_gather(row.unsqueeze(0));
}

int64_t convert_sync_batch_norm(torch::nn::Module& model, const Communicator& comm) {
  const auto layers =
      std::make_shared<SyncLayers>(SyncLayers{.comm = comm, .names = {}, .before_exchange = {}});
  for (const auto& item : model.named_modules()) {
    torch::nn::Module& layer = *item.value();
    if (!is_batch_norm(layer)) continue;
    if (const auto before = hook_of(layer)) hooks::remove_hook(layer, before.get());
    // Replaces the layer's own computation: other hooks around it stay around it.
    hooks::add_hook(
        layer, std::make_shared<SyncHook>(Layer{.layers = layers, .index = layers->names.size()}),
        hooks::Place::kInnermost);
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
  return hook_of(layer) != nullptr;
}

SyncBatchNormWatch::SyncBatchNormWatch(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules()) {
    std::shared_ptr<SyncLayers> group;
    if (const auto* own = dynamic_cast<const SyncBatchNormImpl*>(item.value().get())) {
      group = own->layers_;
    } else if (const auto hook = hook_of(*item.value())) {
      group = hook->layer().layers;
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
      "; other tensors have been put in place of the layers' own: copy values into them "
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
    // A cumulative mean.
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return normalize_in_training(input, weight, bias, running_mean, running_var, momentum,
                               options.eps(), {.layers = layers_, .index = 0});
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ")";
}

}  // namespace lockstep::inline v0
