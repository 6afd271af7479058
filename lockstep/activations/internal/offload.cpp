#include "lockstep/activations/internal/offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <string>
#include <utility>

#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::activations::internal {
namespace {

// One stream per thread and device: libtorch's pool hands out a few dozen in turn, so it is kept.
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
         !tensor.is_leaf() && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() &&
         !tensor.is_neg();
}

std::shared_ptr<Offloaded> Offloaded::of(const std::vector<at::Tensor>& inputs) {
  const std::shared_ptr<Offloaded> one(new Offloaded);
  one->send(inputs);
  one->before_ = std::exchange(last_of_thread(), one);
  return one;
}

void Offloaded::send(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& input : inputs) {
    Away& away = away_.emplace_back();
    if (!may_be_offloaded(input)) continue;
    away.device = input.device();
    away.input = input.detach();
    const c10::Stream out = outward_stream(away.device);
    device::order(device::current_stream(away.device), out);
    const c10::StreamGuard guard(out);
    away.host = device::empty_pinned_like(input);
    away.host.copy_(away.input, /*non_blocking=*/true);
    away.there = std::make_shared<device::Event>(away.device);
    away.there->record(out);
  }
}

// If forward or backward ended with an exception, streams that nothing is ordered after may still
// use the memory.
Offloaded::~Offloaded() {
  try {
    for (const Away& away : away_)
      if (away.input.defined()) away.input.record_stream(outward_stream(away.device));
    const MutexLock lock(mutex_);
    if (!ahead_) return;
    for (const auto& back : *ahead_)
      if (back) back->tensor.record_stream(back->in);
  } catch (...) {  // the device has failed, and its next use reports that
  }
}

void Offloaded::let_go() {
  for (Away& away : away_) {
    if (!away.host.defined()) continue;
    away.there->block(device::current_stream(away.device));
    away.input.reset();
  }
}

void Offloaded::begin() {
  if (ahead_) return;
  const at::NoGradGuard no_grad;
  Ahead& ahead = ahead_.emplace();
  for (const Away& away : away_) {
    ahead.emplace_back();
    if (!away.host.defined()) continue;
    const c10::Stream here = device::current_stream(away.device);
    const c10::Stream in = device::copy_stream(away.device);
    const at::Tensor tensor =
        at::empty_strided(away.host.sizes(), away.host.strides(),
                          at::TensorOptions().dtype(away.host.scalar_type()).device(away.device));
    // Waits until the device reaches the allocation; otherwise copies, and their memory, would run
    // ahead as far as the host does.
    device::order(here, in);
    away.there->block(in);
    Back& back = ahead.back().emplace(Back{tensor, here, in, device::Event(away.device)});
    const c10::StreamGuard guard(in);
    back.tensor.copy_(away.host, /*non_blocking=*/true);
    back.there.record(in);
  }
}

void Offloaded::begin_ahead() {
  const MutexLock lock(mutex_);
  if (!was_back_) begin();
}

std::vector<at::Tensor> Offloaded::back() {
  std::vector<at::Tensor> tensors;
  {
    const MutexLock lock(mutex_);
    begin();
    for (const auto& back : *ahead_) {
      at::Tensor& tensor = tensors.emplace_back();
      if (!back) continue;
      const c10::Stream here = device::current_stream(back->of.device());
      back->there.block(here);
      if (here != back->of) back->tensor.record_stream(here);
      tensor = back->tensor;
    }
    ahead_.reset();
    was_back_ = true;
  }
  if (const auto before = before_.lock()) before->begin_ahead();
  return tensors;
}

}  // namespace lockstep::inline v0::activations::internal
