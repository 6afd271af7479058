#include "lockstep/model/internal/lm_sparse.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/device/memory.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/model/internal/expert_nodes.h"
#include "lockstep/model/internal/follow.h"
#include "lockstep/model/internal/lm_units.h"
#include "lockstep/model/internal/router_record.h"
#include "lockstep/model/internal/undrawn.h"
#include "lockstep/model/router.h"

namespace lockstep::inline v0::internal {
namespace {

// Logits and shares, where the host has them. Where tokens go decides sizes, so a device is waited for, once.
std::pair<at::Tensor, at::Tensor> on_host(const at::Tensor& logits, const at::Tensor& shares) {
  if (shares.is_cpu()) return {logits.detach(), shares.detach()};
  const at::Tensor both = at::stack({logits.detach(), shares.detach()}).cpu();
  return {both[0], both[1]};
}

std::vector<int64_t> choices_of(const at::Tensor& shares, int64_t chosen) {
  const at::Tensor rows = shares.contiguous();
  if (rows.scalar_type() == at::kDouble)
    return choose_experts(rows.const_data_ptr<double>(), rows.size(0), rows.size(1), chosen);
  return choose_experts(rows.const_data_ptr<float>(), rows.size(0), rows.size(1), chosen);
}

at::Tensor exact_softmax(const at::Tensor& logits) {
  const auto guard = without_autocast();
  return at::softmax(logits, 1);
}

// Where rows are divided among the parts of a layer, each part asks its routers about all rows, which it has gathered
// anyway: their gradients are then added up like those of all that is within. Otherwise routers are outside, where
// all parts compute the same, and the weights that they give enter.
at::Tensor enter_weight(const at::Tensor& weight, const internal::LmPass& pass) {
  return has_own_rows(pass) ? weight : enter_part(weight, pass);
}

}  // namespace

LmExpert::LmExpert(int64_t width, int64_t inner, const ExpertNames& names)
    : is_mixtral_(std::string_view(names.down) == "w2") {
  const auto matrix = [&](const char* name, int64_t from, int64_t to) {
    return register_module(name, undrawn_linear(from, to, /*bias=*/false));
  };
  gate = matrix(names.gate, width, inner);
  if (is_mixtral_) down = matrix(names.down, inner, width);  // w1, w2, w3
  up = matrix(names.up, width, inner);
  if (!is_mixtral_) down = matrix(names.down, inner, width);
}

bool LmExpert::is_hooked() {
  if (is_mixtral_)
    follow_children(*this, gate, down, up);
  else
    follow_children(*this, gate, up, down);
  return hooks::is_hooked(gate->weight) || hooks::is_hooked(up->weight) ||
         hooks::is_hooked(down->weight);
}

LmSparseMlp::LmSparseMlp(const LmConfig& config, const LmExperts& experts, int64_t layer)
    : layer_(layer),
      all_(config.num_local_experts),
      chosen_(config.num_experts_per_tok),
      capacity_factor_(config.capacity_factor),
      part_(experts) {
  const ExpertNames names = expert_names(config);
  const int64_t width = config.hidden_size;
  gate_ = register_module("gate", undrawn_linear(width, all_, /*bias=*/false));
  const auto list = register_module("experts", std::make_shared<torch::nn::Module>("Experts"));
  const int64_t first = part_.first(all_), end = first + part_.count(all_);
  for (int64_t i = 0; i < all_; ++i) {
    if (i >= first && i < end) {
      experts_.push_back(list->register_module(
          std::to_string(i), std::make_shared<LmExpert>(width, config.intermediate_size, names)));
    } else {
      // Modules draw some numbers as they are made: parts must be where the whole is when theirs are drawn.
      const LmExpert elsewhere(1, 1, names);
    }
  }
  if (config.shared_expert_intermediate_size == 0) return;
  shared_ = register_module(
      "shared_expert",
      std::make_shared<LmExpert>(width, config.shared_expert_intermediate_size, names));
  shared_gate_ = register_module("shared_expert_gate", undrawn_linear(width, 1, /*bias=*/false));
}

bool LmSparseMlp::is_hooked() {
  // All are asked, for each follows its children.
  const auto children_now = children();
  follow(*this, children_now[0], gate_);
  bool hooked = hooks::is_hooked(gate_->weight);
  for (const auto& expert : experts_) hooked = expert->is_hooked() || hooked;
  if (!shared_) return hooked;
  follow(*this, children_now[3], shared_gate_);
  return shared_->is_hooked() || hooks::is_hooked(shared_gate_->weight) || hooked;
}

// In the parameters' type, also where autocast or a node has narrower rows: shares decide.
at::Tensor LmSparseMlp::router_logits(const at::Tensor& rows, const internal::LmPass& pass,
                                      Arithmetic arithmetic) const {
  const auto guard = without_autocast();
  const at::Tensor exact = rows.to(gate_->weight.scalar_type());
  const at::Tensor logits = products(
      exact, {{of_all_rows(gate_->weight, pass), {}}},
      arithmetic == Arithmetic::kComposed ? arithmetic : Arithmetic::kFloat32, pass.deferred)[0];
  return at::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
}

at::Tensor LmSparseMlp::of_experts(const at::Tensor& rows, const std::vector<int64_t>& counts,
                                   const internal::LmPass& pass, Arithmetic arithmetic) const {
  std::vector<at::Tensor> gates, ups, downs;
  for (const auto& expert : experts_) {
    gates.push_back(expert->gate->weight);
    ups.push_back(expert->up->weight);
    downs.push_back(expert->down->weight);
  }
  const auto inner = grouped_products(rows, counts, {gates, ups}, arithmetic, pass.deferred);
  return grouped_products(swiglu(inner[0], inner[1], arithmetic), counts, {downs}, arithmetic,
                          pass.deferred)[0];
}

at::Tensor LmSparseMlp::of_shared(const at::Tensor& rows, const at::Tensor& entered,
                                  const internal::LmPass& pass, Arithmetic arithmetic) const {
  const auto inner = products(entered, {{shared_->gate->weight, {}}, {shared_->up->weight, {}}},
                              arithmetic, pass.deferred);
  const at::Tensor y = products(swiglu(inner[0], inner[1], arithmetic),
                                {{shared_->down->weight, {}}}, arithmetic, pass.deferred)[0];
  const at::Tensor weight =
      products(rows, {{of_all_rows(shared_gate_->weight, pass), {}}}, arithmetic, pass.deferred)[0]
          .sigmoid();
  return enter_weight(weight, pass) * y;
}

at::Tensor LmSparseMlp::work(const at::Tensor& rows, const internal::LmPass& pass,
                             Arithmetic arithmetic) {
  const at::Tensor entered = enter_part(rows, pass);
  const at::Tensor& asked = has_own_rows(pass) ? entered : rows;
  at::Tensor logits = router_logits(asked, pass, arithmetic);
  // Every part's gradient of the losses is the whole one.
  const double part_of_losses =
      has_own_rows(pass) ? 1.0 / static_cast<double>(pass.part->count()) : 1;
  const int64_t tokens = asked.size(0), counted = pass.counted.value_or(tokens);
  if (pass.routers && counted == tokens)
    logits = watched_logits(logits, pass.routers, layer_, part_of_losses);
  else if (pass.routers)
    logits = at::cat(
        {watched_logits(logits.narrow(0, 0, counted).clone(), pass.routers, layer_, part_of_losses),
         logits.narrow(0, counted, tokens - counted)});
  const at::Tensor shares = exact_softmax(logits);
  const auto [own_logits, own_shares] =
      on_host(logits.narrow(0, 0, counted), shares.narrow(0, 0, counted));
  std::vector<int64_t> choices = choices_of(own_shares, chosen_);
  RoutedRows rows_of =
      route(choices, all_, chosen_, expert_capacity(capacity_factor_, counted, all_, chosen_));
  if (pass.routers) pass.routers->count(layer_, choices, rows_of.left_out, own_logits, own_shares);
  // Padding goes to no expert.
  choices.resize(static_cast<size_t>(tokens * chosen_), 0);
  rows_of.places.resize(choices.size(), -1);
  const auto routed = std::make_shared<const RoutedRows>(std::move(rows_of));
  const at::Tensor chosen = shares.gather(
      1, device::copy_to(at::tensor(choices, at::kLong).view({tokens, chosen_}), shares.device()));
  const at::Tensor weights = enter_weight(chosen / chosen.sum(1, /*keepdim=*/true), pass);
  const at::Tensor sorted = sorted_rows(entered, routed, arithmetic);
  at::Tensor made;
  if (part_.parts > 1) {
    const LmExpertRows here = part_.ranks->exchange(sorted, routed->counts, layer_);
    made = here.back(of_experts(here.rows, here.counts, pass, arithmetic));
  } else {
    made = of_experts(sorted, routed->counts, pass, arithmetic);
  }
  at::Tensor y = weighted_rows(made, weights, routed, arithmetic);
  if (shared_) y = y + of_shared(asked, entered, pass, arithmetic);
  return pass.part ? pass.part->leave(y) : y;
}

}  // namespace lockstep::inline v0::internal
