#include "lockstep/model/internal/router_record.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/lm_units.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Places in a layer's sums, behind choices and shares.
enum : int64_t { kZ, kEntropy, kTokens, kLeftOut, kNumbers };

struct RecordHandle final : torch::CustomClassHolder {
  explicit RecordHandle(std::shared_ptr<RouterRecord> record) : record(std::move(record)) {}
  std::shared_ptr<RouterRecord> record;
};

RouterRecord& record_of(AutogradContext* context) {
  const auto capsule = context->saved_data["record"].toCapsule();
  return *static_cast<const RecordHandle&>(*capsule).record;
}

class WatchedLogitsNode final : public torch::autograd::Function<WatchedLogitsNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const c10::intrusive_ptr<RecordHandle>& record, int64_t layer,
                            double part) {
    context->saved_data["record"] = c10::IValue::make_capsule(record);
    context->saved_data["layer"] = layer;
    context->saved_data["part"] = part;
    context->save_for_backward({logits});
    context->set_materialize_grads(false);
    return logits;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const auto guard = without_autocast();
    at::Tensor own = record_of(context).gradient_of(context->saved_data["layer"].toInt(),
                                                    context->get_saved_variables()[0]);
    const double part = context->saved_data["part"].toDouble();
    if (own.defined() && part != 1) own.mul_(part);
    const at::Tensor& others = gradients[0];
    return {!own.defined() || !others.defined() ? (own.defined() ? own : others) : own + others,
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Rows and the losses' value as they are. Every layer's backward comes after this one's, since rows' gradient
// does: by then the record knows what the losses' sum is multiplied by.
class RouterLossesNode final : public torch::autograd::Function<RouterLossesNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& rows,
                               const at::Tensor& loss,
                               const c10::intrusive_ptr<RecordHandle>& record) {
    context->saved_data["record"] = c10::IValue::make_capsule(record);
    context->set_materialize_grads(false);
    return {rows, loss};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    record_of(context).set_gradient(gradients[1].defined() ? gradients[1].item<double>() : 0);
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

class AttachedLossesNode final : public torch::autograd::Function<AttachedLossesNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<RecordHandle>& record, double scale) {
    context->saved_data["record"] = c10::IValue::make_capsule(record);
    context->saved_data["scale"] = scale;
    return rows;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    record_of(context).set_gradient(context->saved_data["scale"].toDouble());
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RouterRecord::RouterRecord(const LmConfig& config, const LmExperts& experts)
    : experts_(config.num_local_experts),
      layers_(config.num_hidden_layers),
      balance_(config.router_aux_loss_coef),
      z_(config.router_z_loss_coef),
      by_layer_(config.router_aux_loss_by_layer),
      ranks_(experts.token_ranks() > 1 ? experts.ranks : nullptr) {}

void RouterRecord::count(int64_t layer, const std::vector<int64_t>& choices, int64_t left_out,
                         const at::Tensor& logits, const at::Tensor& shares) {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = at::zeros({2 * experts_ + kNumbers}, at::kDouble);
  auto* const numbers = sums.mutable_data_ptr<double>();
  for (const int64_t expert : choices) numbers[expert] += 1;
  const at::Tensor logs = at::log_softmax(logits, 1);
  sums.narrow(0, experts_, experts_).copy_(shares.sum(0, /*keepdim=*/false, at::kDouble));
  numbers[2 * experts_ + kZ] = at::logsumexp(logits, 1).square().sum(at::kDouble).item<double>();
  numbers[2 * experts_ + kEntropy] = -(shares * logs).sum(at::kDouble).item<double>();
  numbers[2 * experts_ + kTokens] = static_cast<double>(logits.size(0));
  numbers[2 * experts_ + kLeftOut] = static_cast<double>(left_out);
  sums_[layer] = sums;
}

const at::Tensor& RouterRecord::sums_of(int64_t layer) const {
  const auto all = all_.find(layer);
  return all == all_.end() ? sums_.at(layer) : all->second;
}

std::vector<RouterStatistics> RouterRecord::statistics() const {
  std::vector<RouterStatistics> layers;
  for (const auto& item : sums_) {
    const at::Tensor& sums = sums_of(item.first);
    const auto* const numbers = sums.const_data_ptr<double>();
    RouterStatistics& one = layers.emplace_back();
    one.layer = item.first;
    for (int64_t i = 0; i < experts_; ++i) one.choices.push_back(static_cast<int64_t>(numbers[i]));
    const double* const rest = numbers + 2 * experts_;
    one.left_out = static_cast<int64_t>(rest[kLeftOut]);
    if (rest[kTokens] == 0) continue;  // a rank without rows
    one.entropy = rest[kEntropy] / rest[kTokens];
    for (int64_t i = 0; i < experts_; ++i)
      one.balance += static_cast<double>(experts_) * (numbers[i] / rest[kTokens]) *
                     (numbers[experts_ + i] / rest[kTokens]);
  }
  return layers;
}

double RouterRecord::add_up() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> mine;
  for (const auto& item : sums_) mine.push_back(item.second);
  const at::Tensor all = at::stack(mine);
  if (ranks_) ranks_->combine(all);
  int64_t row = 0;
  for (const auto& item : sums_) all_[item.first] = all.select(0, row++);
  // [layers, experts]
  const at::Tensor choices = all.narrow(1, 0, experts_), shares = all.narrow(1, experts_, experts_);
  const at::Tensor tokens = all.narrow(1, 2 * experts_ + kTokens, 1);
  const auto depth = static_cast<double>(layers_), experts = static_cast<double>(experts_);
  const at::Tensor shared = ((choices / tokens) * (shares / tokens)).sum();
  const at::Tensor together =
      ((choices.sum(0) / tokens.sum()) * (shares.sum(0) / tokens.sum())).sum();
  const double balance = by_layer_ ? shared.item<double>() / depth
                                   : together.item<double>() * static_cast<double>(row) / depth;
  const double z = (all.narrow(1, 2 * experts_ + kZ, 1) / tokens).sum().item<double>() / depth;
  return balance_ * experts * balance + z_ * z;
}

at::Tensor RouterRecord::gradient_of(int64_t layer, const at::Tensor& logits) const {
  if (gradient_ == 0 || all_.empty()) return {};
  const at::NoGradGuard no_grad;
  const auto ranks = static_cast<double>(ranks_ ? ranks_->token_ranks() : 1),
             depth = static_cast<double>(layers_);
  const at::Tensor& own = sums_of(layer);
  const auto tokens_of = [&](const at::Tensor& sums) {
    return sums.const_data_ptr<double>()[2 * experts_ + kTokens];
  };
  // The losses' derivatives by a share of a token of this layer, times the ranks, over which they are averaged.
  at::Tensor choices = own.narrow(0, 0, experts_);
  double tokens = tokens_of(own), parts = depth;
  if (!by_layer_) {
    choices = at::zeros({experts_}, at::kDouble);
    tokens = 0, parts = depth / static_cast<double>(all_.size());
    for (const auto& item : all_) {
      choices += item.second.narrow(0, 0, experts_);
      tokens += tokens_of(item.second);
    }
  }
  const double scale = gradient_ * ranks;
  const at::Tensor slopes = device::copy_to(
      (choices * (scale * balance_ * static_cast<double>(experts_) / (tokens * tokens * parts)))
          .to(logits.scalar_type()),
      logits.device());
  const at::Tensor shares = at::softmax(logits, 1);
  at::Tensor gradient = shares * (slopes - (shares * slopes).sum(1, /*keepdim=*/true));
  if (z_ > 0)
    gradient += shares * at::logsumexp(logits, {1}, /*keepdim=*/true) *
                (2 * scale * z_ / (tokens_of(own) * depth));
  return gradient;
}

at::Tensor watched_logits(const at::Tensor& logits, const std::shared_ptr<RouterRecord>& record,
                          int64_t layer, double part) {
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) return logits;
  return WatchedLogitsNode::apply(logits, c10::make_intrusive<RecordHandle>(record), layer, part);
}

}  // namespace lockstep::inline v0::internal

namespace lockstep::inline v0 {

std::vector<RouterStatistics> router_statistics(const LmPass& pass) {
  return pass->routers ? pass->routers->statistics() : std::vector<RouterStatistics>();
}

WithRouterLosses router_losses(const at::Tensor& rows, const LmPass& pass) {
  if (!pass->routers || !pass->routers->has_losses()) return {rows, {}};
  const at::ScalarType type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor loss = at::full({}, pass->routers->add_up(), rows.options().dtype(type));
  if (!at::GradMode::is_enabled() || !rows.requires_grad()) return {rows, loss};
  const auto both = internal::RouterLossesNode::apply(
      rows, loss, c10::make_intrusive<internal::RecordHandle>(pass->routers));
  return {both[0], both[1]};
}

at::Tensor attach_router_losses(const at::Tensor& rows, const LmPass& pass, double scale) {
  if (!pass->routers || !pass->routers->has_losses()) return rows;
  pass->routers->add_up();
  if (!at::GradMode::is_enabled() || !rows.requires_grad()) return rows;
  return internal::AttachedLossesNode::apply(
      rows, c10::make_intrusive<internal::RecordHandle>(pass->routers), scale);
}

int64_t expert_of(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return -1;
  const std::string_view number = name.substr(at + kExperts.size());
  int64_t expert = -1;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), expert);
  return read.ec == std::errc() && expert >= 0 ? expert : -1;
}

bool is_expert_parameter(std::string_view name) {
  return expert_of(name) >= 0;
}

}  // namespace lockstep::inline v0
