#include "lockstep/parallel/horovod/fused_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "lockstep/flat/bucket_plan.h"

namespace lockstep::inline v0::horovod {

FusedBuffers::FusedBuffers(Communicator comm, std::vector<at::Tensor> parameters,
                           at::ScalarType wire, int64_t threshold, Reduction reduction)
    : comm_(std::move(comm)),
      parameters_(std::move(parameters)),
      wire_(wire),
      threshold_(threshold),
      reduction_(reduction) {
  std::vector<flat::TensorSpec> specs;
  for (size_t i = 0; i < parameters_.size(); ++i)
    specs.push_back({parameters_[i].numel(), travels_as(i)});
  // The total is the sum of the sizes, however the gradients are grouped later.
  std::map<at::ScalarType, int64_t> sizes;
  for (const flat::Bucket& bucket : flat::plan_buckets(specs, {1, 1}))
    sizes[bucket.dtype] += bucket.numel;
  for (const auto& [dtype, numel] : sizes)
    pools_[dtype].memory = comm_.symmetric_empty({numel}, dtype);
}

int64_t FusedBuffers::bytes() const {
  int64_t bytes = 0;
  for (const auto& [dtype, pool] : pools_) bytes += static_cast<int64_t>(pool.memory.nbytes());
  return bytes;
}

at::ScalarType FusedBuffers::travels_as(size_t parameter) const {
  const at::ScalarType own = parameters_[parameter].scalar_type();
  const bool shorter =
      wire_ != at::ScalarType::Undefined && c10::elementSize(own) > c10::elementSize(wire_);
  return shorter ? wire_ : own;
}

void FusedBuffers::start(std::span<const size_t> parameters, const std::string& note) {
  const at::NoGradGuard no_grad;
  std::vector<flat::TensorSpec> specs;
  for (const size_t i : parameters) specs.push_back({parameters_[i].numel(), travels_as(i)});
  for (const flat::Bucket& plan : flat::plan_buckets(specs, {threshold_, threshold_})) {
    Pool& pool = pools_.at(plan.dtype);
    Pending pending;
    pending.buffer = pool.memory.narrow(0, pool.taken, plan.numel);
    pool.taken += plan.numel;
    for (const auto& slot : plan.slots) {
      const size_t i = parameters[slot.tensor];
      const at::Tensor& parameter = parameters_[i];
      at::Tensor part =
          pending.buffer.narrow(0, slot.offset, parameter.numel()).view(parameter.sizes());
      if (parameter.grad().defined())
        part.copy_(parameter.grad());
      else
        part.zero_();
      pending.parts.emplace_back(i, std::move(part));
    }
    if (reduction_.before != 1) pending.buffer.mul_(reduction_.before);
    pending.work = comm_.iall_reduce(pending.buffer, reduction_.op, call_note(note));
    pending_.push_back(std::move(pending));
  }
}

void FusedBuffers::finish() {
  const at::NoGradGuard no_grad;
  for (Pending& pending : pending_) {
    pending.work.wait();
    if (reduction_.after != 1) pending.buffer.mul_(reduction_.after);
    for (const auto& [i, part] : pending.parts) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      if (!gradient.defined()) gradient = at::empty_like(parameters_[i]);
      gradient.copy_(part);
    }
  }
  pending_.clear();
  for (auto& [dtype, pool] : pools_) pool.taken = 0;
}

}  // namespace lockstep::inline v0::horovod
