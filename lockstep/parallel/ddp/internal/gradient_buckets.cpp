#include "lockstep/parallel/ddp/internal/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "lockstep/core/errors.h"
#include "lockstep/flat/gradient_home.h"

namespace lockstep::internal {
namespace {

at::Tensor make_flat(Communicator& comm, const flat::Bucket& plan) {
  if (plan.device != comm.device() && !plan.device.is_cpu())
    return at::zeros({plan.numel}, at::TensorOptions(plan.dtype).device(plan.device));
  return comm.symmetric_empty({plan.numel}, plan.dtype).zero_();
}

}  // namespace

bool Gradient::in_place() const {
  const at::Tensor& gradient = parameter.grad();
  return gradient.defined() && !gradient.is_sparse() && gradient.is_alias_of(view) &&
         gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides();
}

void Gradient::place() {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.is_sparse()) {
    throw InvalidArgument("parameter '" + name +
                          "' has a sparse gradient, but had none in the first backward that was "
                          "averaged; let that one reach it, on any rank");
  }
  if (in_place()) return;
  flat::move_into(view, gradient);
  gradient = view;
}

GradientBuckets::GradientBuckets(NamedTensors parameters) {
  for (auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad() || !tensor.is_leaf())
      throw InvalidArgument("parameter '" + name + "' takes no gradient of its own");
    Gradient gradient;
    gradient.name = name;
    gradient.parameter = tensor;
    gradients_.push_back(std::move(gradient));
  }
}

void GradientBuckets::make(Communicator& comm, std::span<const size_t> order,
                           flat::BucketSizes sizes) {
  std::vector<flat::TensorSpec> specs;
  for (const Gradient& gradient : gradients_) {
    const at::Tensor& tensor = gradient.parameter;
    specs.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  }
  std::vector<size_t> dense;
  for (const size_t i : order) {
    if (!gradients_[i].sparse) dense.push_back(i);
  }
  const at::NoGradGuard no_grad;
  for (const flat::Bucket& plan : flat::plan_buckets(specs, dense, sizes)) {
    Bucket bucket;
    bucket.flat = make_flat(comm, plan);
    for (const auto& slot : plan.slots) {
      Gradient& gradient = gradients_[slot.tensor];
      gradient.view = flat::window(bucket.flat, slot.offset, gradient.parameter.sizes());
      gradient.bucket = buckets_.size();
      bucket.gradients.push_back(slot.tensor);
      ++bucket.missing;
      if (gradient.arrivals == 0) continue;
      gradient.place();
      --bucket.missing;
    }
    buckets_.push_back(std::move(bucket));
  }
  made_ = true;
}

std::vector<GradBucket> GradientBuckets::shown() const {
  std::vector<GradBucket> shown;
  for (const Bucket& bucket : buckets_) {
    GradBucket& one = shown.emplace_back(GradBucket{shown.size(), bucket.flat, {}});
    for (const size_t i : bucket.gradients) one.gradients.push_back(gradients_[i].view);
  }
  return shown;
}

void GradientBuckets::reset() {
  for (Gradient& gradient : gradients_) {
    gradient.arrivals = 0;
    gradient.earlier = false;
    gradient.before.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.gradients.size();
    bucket.work = Work();
  }
}

}  // namespace lockstep::internal
