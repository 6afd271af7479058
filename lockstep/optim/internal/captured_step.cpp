#include "lockstep/optim/internal/captured_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/optim/internal/flat_groups.h"
#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::optim::internal {
namespace {

constexpr int64_t kMostNumbers = 4096;  // groups, and steps that parameters are at

}  // namespace

CapturedStep::CapturedStep(torch::optim::Optimizer& optimizer, FlatGroups& flat,
                           const StateKind& kind, at::Device device)
    : optimizer_(optimizer),
      flat_(flat),
      kind_(kind),
      numbers_(at::empty({kMostNumbers}, at::TensorOptions(at::kFloat).device(device))) {}

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
    const auto found = optimizer_.state().find(key);  // none of an optimizer that keeps nothing
    return found == optimizer_.state().end() ? 0.0
                                             : static_cast<double>(kind_.steps(*found->second));
  });
}

void CapturedStep::join(const std::shared_ptr<CapturedStep>& self, device::Capture& capture,
                        const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters)
    self->parameters_.insert(parameter.unsafeGetTensorImpl());
  capture.add({.before =
                   [self](bool first) {
                     const at::NoGradGuard no_grad;
                     if (!first) self->bring_states_home();
                     if (!first) self->count_steps(1);
                     self->bring_numbers();
                   },
               .updates = true,
               .undo = [self] { self->count_steps(-1); }});
}

void CapturedStep::count_steps(int64_t by) {
  for (const auto& [key, state] : optimizer_.state()) {
    if (parameters_.contains(static_cast<const c10::TensorImpl*>(key)))
      kind_.set_steps(*state, kind_.steps(*state) + by);
  }
}

void CapturedStep::bring_states_home() {
  flat_.follow(optimizer_.param_groups());
  for (Block& block : flat_.blocks()) {
    const size_t count = kind_.count(optimizer_.param_groups()[block.group].options());
    if (count == 0) continue;
    for (Slot& slot : block.slots) {
      if (parameters_.contains(slot.param.unsafeGetTensorImpl()))
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

}  // namespace lockstep::optim::internal
