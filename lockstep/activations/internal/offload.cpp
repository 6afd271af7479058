#include "lockstep/activations/internal/offload.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <string>
#include <utility>

#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::activations::internal {
namespace {

// Of this thread: libtorch's pool hands out a few dozen streams in turns, so one a device is kept.
c10::Stream outward_stream(c10::Device device) {
  thread_local std::map<std::string, c10::Stream> streams;
  const auto found = streams.find(device.str());
  if (found != streams.end()) return found->second;
  return streams.emplace(device.str(), device::side_stream(device)).first->second;
}

std::weak_ptr<Offloaded>& last_of_thread() {
  thread_local std::weak_ptr<Offloaded> last;
  return last;
}

}  // namespace

bool may_be_offloaded(const at::Tensor& tensor) {
  return !tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.requires_grad() &&
         !tensor.is_leaf();
}

std::shared_ptr<Offloaded> Offloaded::of(const std::vector<at::Tensor>& inputs) {
  auto one = std::make_shared<Offloaded>(inputs);
  one->before_ = std::exchange(last_of_thread(), one);
  return one;
}

Offloaded::Offloaded(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& input : inputs) {
    Away& away = away_.emplace_back();
    if (!may_be_offloaded(input)) continue;
    away.device = input.device();
    const c10::Stream out = outward_stream(away.device);
    device::order(device::current_stream(away.device), out);
    const c10::StreamGuard guard(out);
    away.host = device::empty_pinned(input.sizes(), input.scalar_type(), away.device);
    away.host.copy_(input.detach(), /*non_blocking=*/true);
    away.there = std::make_shared<device::Event>(away.device);
    away.there->record(out);
    // Its memory is free for others once the copy is over.
    input.record_stream(out);
  }
}

void Offloaded::begin() {
  if (ahead_) return;
  const at::NoGradGuard no_grad;
  ahead_ = std::make_shared<Ahead>();
  for (const Away& away : away_) {
    at::Tensor& tensor = ahead_->tensors.emplace_back();
    if (!away.host.defined()) continue;
    const c10::Stream in = device::copy_stream(away.device);
    away.there->block(in);
    const c10::StreamGuard guard(in);
    tensor = away.host.to(away.device, /*non_blocking=*/true);
    ahead_->there.emplace_back(away.device).record(in);
  }
}

void Offloaded::begin_ahead() {
  const MutexLock lock(mutex_);
  begin();
}

std::vector<at::Tensor> Offloaded::back() {
  std::shared_ptr<Ahead> here;
  {
    const MutexLock lock(mutex_);
    begin();
    here = std::exchange(ahead_, nullptr);
  }
  for (const device::Event& event : here->there)
    event.block(device::current_stream(event.device()));
  for (const at::Tensor& tensor : here->tensors)
    if (tensor.defined()) tensor.record_stream(device::current_stream(tensor.device()));
  if (const auto before = before_.lock()) before->begin_ahead();
  return std::move(here->tensors);
}

}  // namespace lockstep::activations::internal
