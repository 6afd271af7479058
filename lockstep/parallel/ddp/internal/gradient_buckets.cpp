#include "lockstep/parallel/ddp/internal/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/flat/gradient_home.h"

namespace lockstep::inline v0::internal {
namespace {

// `symmetric` must be the same on all ranks.
at::Tensor make_flat(Communicator& comm, const flat::Bucket& plan, bool symmetric) {
  if (!symmetric) return at::zeros({plan.numel}, at::TensorOptions(plan.dtype).device(plan.device));
  return comm.symmetric_empty({plan.numel}, plan.dtype).zero_();
}

// The bytes of each gradient, by parameter; 0 where it cannot be placed by backward.
std::vector<size_t> bytes_of(const NamedTensors& parameters, bool movable) {
  std::vector<size_t> bytes;
  for (const auto& [name, tensor] : parameters) {
    const bool possible =
        movable && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.numel() > 0;
    bytes.push_back(possible ? tensor.nbytes() : 0);
  }
  return bytes;
}

}  // namespace

GradientBuckets::GradientBuckets(const NamedTensors& parameters, bool movable)
    : movable_(movable), placement_(bytes_of(parameters, movable)) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad() || !tensor.is_leaf())
      throw InvalidArgument("parameter '" + name + "' takes no gradient of its own");
    Gradient gradient;
    gradient.name = name;
    gradient.parameter = tensor;
    gradients_.push_back(std::move(gradient));
  }
}

void GradientBuckets::begin_backward() {
  placement_.begin();
  if (!made_) return;
  for (size_t i = 0; i < gradients_.size(); ++i)
    placement_.expect(i, !gradients_[i].sparse && !gradients_[i].parameter.grad().defined());
}

void GradientBuckets::end_backward() noexcept {
  placement_.end();
}

bool GradientBuckets::place(size_t index, const at::Tensor& passed) {
  Gradient& gradient = gradients_[index];
  at::Tensor& tensor = gradient.parameter.mutable_grad();
  if (tensor.is_sparse()) {
    throw InvalidArgument("parameter '" + gradient.name +
                          "' has a sparse gradient, but had none in the first backward that was "
                          "averaged; let that one reach it, on any rank");
  }
  if (flat::lies_in(tensor, gradient.view)) {
    if (tensor.is_alias_of(gradient.view)) return true;
    if (flat::kept_by_others(tensor, passed)) {
      flat::GradientPlacement::vacate(tensor);
      copied_bytes_ += static_cast<int64_t>(gradient.view.nbytes());
    }
  } else {
    if (placement_.occupied(index)) return false;
    flat::move_into(gradient.view, tensor);
    copied_bytes_ += static_cast<int64_t>(gradient.view.nbytes());
  }
  tensor = gradient.view;
  return true;
}

bool GradientBuckets::place_with_bucket(size_t index, const at::Tensor& passed) {
  Gradient& gradient = gradients_[index];
  const at::Tensor& tensor = gradient.parameter.grad();
  if (gradient.view.is_cpu() || tensor.is_sparse() || flat::lies_in(tensor, gradient.view))
    return place(index, passed);
  buckets_[gradient.bucket].waiting.push_back(index);
  return true;
}

void GradientBuckets::place_waiting(size_t bucket) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> views, gradients;
  for (const size_t i : std::exchange(buckets_[bucket].waiting, {})) {
    Gradient& gradient = gradients_[i];
    at::Tensor& tensor = gradient.parameter.mutable_grad();
    views.push_back(gradient.view);
    gradients.push_back(std::exchange(tensor, gradient.view));
    copied_bytes_ += static_cast<int64_t>(gradient.view.nbytes());
  }
  if (!views.empty()) at::_foreach_copy_(views, gradients);
}

void GradientBuckets::place_or_move(size_t index) {
  if (place(index)) return;
  move_out(gradients_[index].bucket);
  place(index);
}

void GradientBuckets::clear_or_move(size_t index) {
  if (placement_.occupied(index)) move_out(gradients_[index].bucket);
  gradients_[index].view.zero_();
}

// The move is for good, because a tensor in one of its places may live long.
void GradientBuckets::move_out(size_t index) {
  Bucket& bucket = buckets_[index];
  const at::NoGradGuard no_grad;
  const at::Tensor before = bucket.flat;
  bucket.flat = at::zeros(before.sizes(), before.options());
  for (const size_t i : bucket.gradients) {
    Gradient& gradient = gradients_[i];
    const at::Tensor old = gradient.view;
    put_into(bucket, i, old.storage_offset() - before.storage_offset());
    at::Tensor& tensor = gradient.parameter.mutable_grad();
    if (!tensor.defined() || !tensor.is_alias_of(old)) continue;
    flat::move_into(gradient.view, tensor);
    copied_bytes_ += static_cast<int64_t>(gradient.view.nbytes());
    tensor = gradient.view;
  }
  shown_[index] = show(index);
}

void GradientBuckets::put_into(Bucket& bucket, size_t index, int64_t offset) {
  Gradient& gradient = gradients_[index];
  const at::Tensor& like = gradient.parameter;
  gradient.view = movable_ && like.is_non_overlapping_and_dense()
                      ? flat::window(bucket.flat, offset, like.sizes(), like.strides())
                      : flat::window(bucket.flat, offset, like.sizes());
  placement_.set_place(index, gradient.view);
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
  // If a model lies on several devices, only some ranks may have a part of it on the engine's
  // device, depending on how devices are assigned.
  const bool symmetric =
      std::all_of(gradients_.begin(), gradients_.end(), [&](const auto& gradient) {
        return gradient.sparse || gradient.parameter.device() == comm.capabilities().device;
      });
  for (const flat::Bucket& plan : flat::plan_buckets(specs, dense, sizes)) {
    Bucket bucket;
    bucket.flat = make_flat(comm, plan, symmetric);
    for (const auto& slot : plan.slots) {
      Gradient& gradient = gradients_[slot.tensor];
      put_into(bucket, slot.tensor, slot.offset);
      gradient.bucket = buckets_.size();
      bucket.gradients.push_back(slot.tensor);
      ++bucket.missing;
      if (gradient.arrivals == 0) continue;
      place(slot.tensor);
      --bucket.missing;
    }
    buckets_.push_back(std::move(bucket));
    shown_.push_back(show(shown_.size()));
  }
  made_ = true;
}

std::string GradientBuckets::layout() const {
  std::string strides;
  for (const Gradient& gradient : gradients_) {
    const at::Tensor& like = gradient.parameter;
    if (movable_ && like.is_non_overlapping_and_dense() && !like.is_contiguous())
      strides += gradient.name + " " + joined(like.strides()) + "; ";
  }
  return strides.empty() ? "" : ", strides " + std::to_string(fingerprint(strides));
}

GradBucket GradientBuckets::show(size_t bucket) const {
  GradBucket shown{bucket, buckets_[bucket].flat, {}};
  for (const size_t i : buckets_[bucket].gradients) shown.gradients.push_back(gradients_[i].view);
  return shown;
}

void GradientBuckets::reset() {
  for (Gradient& gradient : gradients_) {
    gradient.arrivals = 0;
    gradient.displaced = false;
    gradient.earlier = false;
    gradient.before.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.gradients.size();
    bucket.waiting.clear();
    bucket.work = Work();
  }
}

}  // namespace lockstep::inline v0::internal
