#include "lockstep/optim/internal/captured_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/optim/internal/flat_groups.h"
#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::inline v0::optim::internal {
namespace {

constexpr int64_t kMostNumbers = 4096;  // for groups, and for the parameters' different step counts

using torch::optim::OptimizerOptions;

template <typename Options>
bool are_both(const OptimizerOptions& a, const OptimizerOptions& b) {
  const auto* const first = dynamic_cast<const Options*>(&a);
  const auto* const second = dynamic_cast<const Options*>(&b);
  return first != nullptr && second != nullptr && *first == *second;
}

// For the kinds that can be captured.
bool are_same(const OptimizerOptions& a, const OptimizerOptions& b) {
  return are_both<torch::optim::AdamWOptions>(a, b) || are_both<torch::optim::AdamOptions>(a, b) ||
         are_both<torch::optim::SGDOptions>(a, b);
}

}  // namespace

CapturedStep::CapturedStep(torch::optim::Optimizer& optimizer, FlatGroups& flat,
                           const StateKind& kind, LeftOutSteps* left_out,
                           std::vector<at::Tensor> parameters, at::Device device)
    : optimizer_(optimizer),
      flat_(flat),
      kind_(kind),
      left_out_(left_out),
      parameters_(std::move(parameters)),
      numbers_(at::empty({kMostNumbers}, at::TensorOptions(at::kFloat).device(device))) {
  for (const auto& group : optimizer_.param_groups()) settings_.push_back(group.options().clone());
}

at::Tensor CapturedStep::add(std::function<double()> now) {
  const auto at = static_cast<int64_t>(now_.size());
  if (at == kMostNumbers)
    throw InvalidArgument("fused optimizer: a graph takes " + std::to_string(kMostNumbers) +
                          " groups and step counts at most");
  now_.push_back(std::move(now));
  return numbers_.select(0, at);
}

at::Tensor CapturedStep::learning_rate(size_t group) {
  return add([this, group] { return optimizer_.param_groups()[group].options().get_lr(); });
}

at::Tensor CapturedStep::step_of(const at::Tensor& parameter) {
  return add([this, key = static_cast<void*>(parameter.unsafeGetTensorImpl())] {
    const auto found = optimizer_.state().find(key);  // an optimizer without state has none
    return found == optimizer_.state().end() ? 0.0
                                             : static_cast<double>(kind_.steps(*found->second));
  });
}

void CapturedStep::join(const std::shared_ptr<CapturedStep>& self, device::Capture& capture) {
  capture.add({.before = [self](bool first) { self->before(first); },
               .cancel = [self] { self->count_steps(-1); },
               .updates = true,
               .undo = [self] { self->undo(); }});
}

void CapturedStep::takes(const at::Tensor& parameter, int64_t step) {
  steps_.emplace(parameter.unsafeGetTensorImpl(), step);
}

void CapturedStep::bring_home(at::Tensor& held, const at::Tensor& view) {
  moved_.push_back({&held, held, view});
}

void CapturedStep::before(bool first) {
  const at::NoGradGuard no_grad;
  if (!first) count_steps(1);
  check_settings();
  check_steps();
  for (const Moved& moved : moved_) moved.to.copy_(moved.from, /*non_blocking=*/true);
  moved_.clear();
  bring_states_home();
  if (left_out_ != nullptr) left_out_->set_of(optimizer_, parameters_, kind_);
  bring_numbers();
}

void CapturedStep::undo() {
  count_steps(-1);
  for (const Moved& moved : moved_) *moved.held = moved.from;
  moved_.clear();
}

void CapturedStep::count_steps(int64_t by) {
  for (const auto& [key, state] : optimizer_.state()) {
    if (steps_.contains(static_cast<const c10::TensorImpl*>(key)))
      kind_.set_steps(*state, kind_.steps(*state) + by);
  }
}

void CapturedStep::check_settings() {
  const auto& groups = optimizer_.param_groups();
  bool same = groups.size() == settings_.size();
  for (size_t i = 0; same && i < groups.size(); ++i) {
    settings_[i]->set_lr(groups[i].options().get_lr());  // the learning rate may change
    same = are_same(*settings_[i], groups[i].options());
  }
  if (same) return;
  throw InvalidArgument(
      "fused optimizer: settings other than the learning rate, or the groups, have changed since "
      "a graph captured the step, which keeps those of then; make a new GraphedStep");
}

void CapturedStep::check_steps() const {
  std::map<int64_t, int64_t> now;  // by the number at the capture
  for (const auto& [key, state] : optimizer_.state()) {
    const auto found = steps_.find(static_cast<const c10::TensorImpl*>(key));
    if (found == steps_.end()) continue;
    const int64_t steps = kind_.steps(*state);
    if (now.emplace(found->second, steps).first->second != steps)
      throw InvalidArgument(
          "fused optimizer: a graph takes one number of steps for parameters that had the same "
          "when "
          "it was captured, and since then some of them took steps that others did not; make a "
          "new GraphedStep");
  }
}

void CapturedStep::bring_states_home() {
  flat_.follow(optimizer_.param_groups());
  for (Block& block : flat_.blocks()) {
    const size_t count = kind_.count(optimizer_.param_groups()[block.group].options());
    if (count == 0) continue;
    for (Slot& slot : block.slots) {
      if (steps_.contains(slot.param.unsafeGetTensorImpl()))
        ready_state(optimizer_, kind_, block, slot, count);
    }
  }
}

void CapturedStep::bring_numbers() {
  const auto count = static_cast<int64_t>(now_.size());
  const at::Tensor host = device::empty_pinned({count}, at::kFloat, numbers_.device());
  for (int64_t i = 0; i < count; ++i)
    host.mutable_data_ptr<float>()[i] = static_cast<float>(now_[static_cast<size_t>(i)]());
  numbers_.narrow(0, 0, count).copy_(host, /*non_blocking=*/true);
}

}  // namespace lockstep::inline v0::optim::internal
