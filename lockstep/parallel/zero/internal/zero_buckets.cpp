#include "lockstep/parallel/zero/internal/zero_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/flat/parameter_home.h"

namespace lockstep::internal {
namespace {

void check_kind(const ZeroParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument("ZeroOptimizer: parameter '" + parameter.name + "' " + why);
  };
  if (!flat::can_be_flat(tensor))
    refuse("is undefined, sparse or not floating-point; leave it out");
  if (!tensor.requires_grad()) refuse("is frozen (requires_grad is false); leave it out");
  if (!tensor.is_leaf()) refuse("is the result of a computation; optimizers take leaves");
}

void check_separate(const std::vector<ZeroParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const ZeroParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  const auto shared = flat::find_shared_memory(tensors);
  if (!shared) return;
  throw InvalidArgument("ZeroOptimizer: parameters '" + parameters[shared->first].name + "' and '" +
                        parameters[shared->second].name +
                        "' share memory; give a shared tensor once, as one tensor");
}

at::Tensor make_flat(Communicator& comm, const flat::Bucket& plan) {
  if (plan.device != comm.device())
    return at::zeros({plan.numel}, at::TensorOptions(plan.dtype).device(plan.device));
  return comm.symmetric_empty({plan.numel}, plan.dtype).zero_();
}

}  // namespace

void check_parameters(const std::vector<ZeroParameter>& parameters) {
  for (const ZeroParameter& parameter : parameters) check_kind(parameter);
  check_separate(parameters);
}

void ZeroParameter::place() {
  at::Tensor& gradient = tensor.mutable_grad();
  if (!gradient.defined()) {
    const at::NoGradGuard no_grad;
    view.zero_();
  } else if (gradient.is_sparse() || gradient.const_data_ptr() != view.const_data_ptr() ||
             gradient.strides() != view.strides()) {
    flat::move_into(view, gradient);
  } else {
    return;
  }
  gradient = view;
}

const at::Tensor& ZeroBucket::state(size_t which) {
  while (states.size() <= which) states.push_back(at::zeros({part}, own_parameters.options()));
  return states[which];
}

ZeroBuckets::ZeroBuckets(Communicator& comm, std::vector<ZeroParameter> parameters,
                         std::span<const size_t> groups, int parts, flat::BucketSizes sizes)
    : parameters_(std::move(parameters)), parts_(parts) {
  std::vector<flat::TensorSpec> specs;
  for (const ZeroParameter& parameter : parameters_) {
    specs.push_back(
        {parameter.tensor.numel(), parameter.tensor.scalar_type(), parameter.tensor.device()});
  }
  const at::NoGradGuard no_grad;
  for (const flat::ShardedBucket& plan : flat::plan_shards(specs, groups, parts, sizes)) {
    ZeroBucket bucket;
    bucket.group = plan.group;
    bucket.part = plan.part;
    bucket.parameters = make_flat(comm, plan.bucket);
    bucket.gradients = make_flat(comm, plan.bucket);
    move(bucket, plan.bucket, parts == 1 ? 0 : comm.rank());
    buckets_.push_back(std::move(bucket));
  }
  reset();
}

void ZeroBuckets::move(ZeroBucket& bucket, const flat::Bucket& plan, int part) {
  bucket.origin = part * bucket.part;
  bucket.own_parameters = bucket.parameters.narrow(0, bucket.origin, bucket.part);
  bucket.own_gradient = bucket.gradients.narrow(0, bucket.origin, bucket.part);
  for (const flat::Bucket::Slot& place : plan.slots) {
    ZeroParameter& parameter = parameters_[place.tensor];
    const int64_t numel = parameter.tensor.numel();
    bucket.slots.push_back({place.tensor, place.offset, numel,
                            flat::range_in_part(place.offset, numel, part, bucket.part)});
    parameter.bucket = buckets_.size();
    flat::move_home(parameter.tensor, bucket.parameters, place.offset);
    parameter.view = flat::window(bucket.gradients, place.offset, parameter.tensor.sizes(),
                                  parameter.tensor.strides());
  }
}

void ZeroBuckets::check_places() const {
  for (const ZeroBucket& bucket : buckets_) {
    for (const ZeroSlot& slot : bucket.slots) {
      const ZeroParameter& parameter = parameters_[slot.parameter];
      if (parameter.tensor.numel() == slot.numel &&
          flat::is_home(parameter.tensor, bucket.parameters, slot.offset))
        continue;
      throw InvalidArgument("ZeroOptimizer: parameter '" + parameter.name +
                            "' has been moved since the optimizer was made; make it after "
                            "model->to(...), and only one a parameter");
    }
  }
}

void ZeroBuckets::reset() {
  for (ZeroParameter& parameter : parameters_) {
    parameter.tensor.mutable_grad().reset();
    parameter.used = false;
  }
  forget_arrivals();
}

void ZeroBuckets::forget_arrivals() {
  for (ZeroParameter& parameter : parameters_) parameter.arrived = false;
  for (ZeroBucket& bucket : buckets_) {
    bucket.missing = bucket.slots.size();
    bucket.work = Work();
    bucket.arriving.reset();
  }
}

}  // namespace lockstep::internal
