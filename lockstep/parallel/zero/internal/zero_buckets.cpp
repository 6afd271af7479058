#include "lockstep/parallel/zero/internal/zero_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/file_memory.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/flat/parameter_home.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0::internal {
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

at::Tensor make_flat(Communicator& comm, const flat::TensorSpec& spec) {
  if (spec.device != comm.capabilities().device)
    return at::zeros({spec.numel}, at::TensorOptions(spec.dtype).device(spec.device));
  return comm.symmetric_empty({spec.numel}, spec.dtype).zero_();
}

// Returns zeros in the memory of a file.
at::Tensor zeros_in(const std::string& directory, int64_t numel, const at::TensorOptions& options) {
  const auto memory = std::make_shared<FileMemory>(
      directory, static_cast<size_t>(numel) * options.dtype().itemsize());
  return at::from_blob(memory->data(), {numel}, [memory](void*) {}, options);
}

flat::TensorSpec spec_of(const flat::Bucket& plan) {
  return {plan.numel, plan.dtype, plan.device};
}

// The future device of each parameter: those of units arrive from the host, so that no device has
// all of them before they are divided.
std::vector<at::Device> devices_of(const std::vector<ZeroParameter>& parameters,
                                   const ZeroLayout& layout, at::Device moved) {
  std::vector<at::Device> devices;
  for (const ZeroParameter& parameter : parameters)
    devices.push_back(
        layout.units != nullptr && parameter.tensor.is_cpu() ? moved : parameter.tensor.device());
  return devices;
}

// By parameter, on `devices`; 0 where backward cannot write a gradient to its place.
std::vector<size_t> bytes_of(const std::vector<ZeroParameter>& parameters,
                             std::span<const at::Device> devices) {
  std::vector<size_t> bytes;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    bytes.push_back(devices[i].is_cpu() && tensor.numel() > 0 ? tensor.nbytes() : 0);
  }
  return bytes;
}

}  // namespace

void check_parameters(const std::vector<ZeroParameter>& parameters) {
  for (const ZeroParameter& parameter : parameters) check_kind(parameter);
  check_separate(parameters);
}

const at::Tensor& ZeroBucket::state(size_t which) {
  while (states.size() <= which)
    states.push_back(state_directory.empty()
                         ? at::zeros({part}, own_values().options())
                         : zeros_in(state_directory, part, own_values().options()));
  return states[which];
}

ZeroBuckets::ZeroBuckets(Communicator& comm, std::vector<ZeroParameter> parameters,
                         std::span<const size_t> groups, const ZeroLayout& layout)
    : parameters_(std::move(parameters)),
      devices_(devices_of(parameters_, layout, comm.capabilities().device)),
      placement_(bytes_of(parameters_, devices_)),
      parts_(layout.parts),
      alone_(comm.size() == 1) {
  std::vector<flat::TensorSpec> specs;
  bool here = true;  // all of them lie in memory that the communicator moves
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    specs.push_back({tensor.numel(), tensor.scalar_type(), devices_[i]});
    here = here && devices_[i] == comm.capabilities().device;
  }
  const at::NoGradGuard no_grad;
  // On devices every rank has a copy, unless the units' memory is divided.
  if (layout.one_copy && here && (comm.capabilities().device.is_cpu() || layout.units != nullptr))
    host_copy_ = HostCopy::make(comm, layout.copies);
  if (layout.units != nullptr) find_units(*layout.units);
  const std::vector<flat::ShardedBucket> plans =
      plan_zero_buckets(specs, groups, unit_plan_, layout);
  make_pool(comm, plans, layout.buffers);
  std::vector<at::Tensor> flats;
  for (const flat::ShardedBucket& plan : plans) {
    ZeroBucket bucket;
    const size_t first = plan.bucket.slots.front().tensor;
    bucket.group = groups[first];
    if (!unit_plan_.names.empty()) bucket.unit = unit_plan_.unit[first];
    bucket.part = plan.part;
    bucket.parameters = make_parameters(comm, plan.bucket, bucket.unit.has_value());
    if (has_master(layout.masters, plan.bucket.dtype))
      bucket.own_master = at::zeros({bucket.part}, bucket.parameters.options().dtype(at::kFloat));
    if (lends()) {
      const flat::TurnPlan::Turn& turn = turns_.turns[buckets_.size()];
      bucket.gradients = pool_[turn.buffer].narrow(0, 0, plan.bucket.numel);
      bucket.after = turn.after;
      bucket.buffer = turn.buffer;
    } else {
      bucket.gradients = make_flat(comm, spec_of(plan.bucket));
    }
    const bool drawn_here = layout.initial != nullptr;
    move(bucket, plan.bucket, parts_ == 1 ? 0 : (host_copy_ ? host_copy_->parts() : comm).rank(),
         !drawn_here && (!host_copy_ || host_copy_->writes()));
    if (drawn_here) bear(bucket, layout);
    if (bucket.unit) {
      // Spreads one at a time, so that the host never holds all of them.
      if (!drawn_here) host_copy_->spread(std::span(&bucket.parameters, 1));
      bucket.kept = host_copy_->keep(bucket.parameters);
      if (drawn_here) host_copy_->join(std::span(&bucket.kept, 1));
      bucket.own_parameters = host_copy_->own_part(bucket.kept);
      if (host_copy_->writes()) host_copy_->release(bucket.parameters);
    } else {
      flats.push_back(bucket.parameters);
    }
    buckets_.push_back(std::move(bucket));
  }
  if (layout.initial != nullptr) {
    if (host_copy_)
      host_copy_->publish(flats);
    else if (parts_ > 1)
      for (const ZeroBucket& one : buckets_)
        comm.iall_gather(one.parameters, one.own_parameters).wait();
  } else if (host_copy_) {
    host_copy_->spread(flats);
  } else {
    for (const at::Tensor& flat : flats) comm.broadcast(flat, 0);
  }
  return_freed_memory();  // where the parameters were
  // The masters then get the parameters' current values; those of `initial` have more bits.
  for (ZeroBucket& bucket : buckets_) {
    if (bucket.own_master.defined() && layout.initial == nullptr)
      bucket.own_master.copy_(bucket.own_parameters);
  }
  if (!unit_plan_.names.empty()) divide_units(*layout.units);
  reset();
}

// On a single host nothing is fetched, but wrong names are errors there too.
void ZeroBuckets::find_units(const ZeroUnits& units) {
  std::vector<at::Tensor> tensors;
  for (const ZeroParameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  UnitPlan plan = plan_units(*units.model, units.names, tensors);
  if (host_copy_ && host_copy_->hosts() > 1) unit_plan_ = std::move(plan);
}

void ZeroBuckets::divide_units(const ZeroUnits& units) {
  std::vector<GatheredUnits::Unit> found;
  for (const std::string& name : unit_plan_.names) found.push_back({name, {}, {}});
  for (const ZeroBucket& bucket : buckets_) {
    if (!bucket.unit) continue;
    GatheredUnits::Unit& unit = found[*bucket.unit];
    unit.flats.push_back(bucket.kept);
    for (const ZeroSlot& slot : bucket.slots)
      unit.parameters.push_back(parameters_[slot.parameter].tensor);
  }
  units_ =
      std::make_shared<GatheredUnits>(*host_copy_, std::move(found), !units.reshard_after_forward);
}

void ZeroBuckets::make_pool(Communicator& comm, std::span<const flat::ShardedBucket> plans,
                            size_t each) {
  if (each == 0) return;
  std::vector<flat::TensorSpec> specs;
  for (const flat::ShardedBucket& plan : plans) specs.push_back(spec_of(plan.bucket));
  turns_ = flat::plan_turns(specs, each);
  for (const flat::TensorSpec& spec : turns_.buffers) pool_.push_back(make_flat(comm, spec));
}

at::Tensor ZeroBuckets::make_parameters(Communicator& comm, const flat::Bucket& plan,
                                        bool of_a_unit) {
  return host_copy_ ? host_copy_->empty(plan.numel, plan.dtype, of_a_unit)
                    : make_flat(comm, spec_of(plan));
}

// The memory is zero, for the padding.
void ZeroBuckets::bear(ZeroBucket& bucket, const ZeroLayout& layout) {
  for (const ZeroSlot& slot : bucket.slots) {
    if (slot.own.empty()) continue;
    const int64_t begin = bucket.origin + slot.own.begin - slot.offset;
    const at::Tensor part =
        bucket.own_values().narrow(0, slot.own.begin, slot.own.end - slot.own.begin);
    const at::Tensor drawn =
        part.is_cpu() ? part : at::empty(part.sizes(), at::TensorOptions(part.scalar_type()));
    (*layout.initial)(parameters_[slot.parameter].name, begin, drawn);
    if (!part.is_cpu()) part.copy_(drawn);
  }
  if (bucket.own_master.defined()) bucket.own_parameters.copy_(bucket.own_master);
}

void ZeroBuckets::move(ZeroBucket& bucket, const flat::Bucket& plan, int part, bool values) {
  bucket.origin = part * bucket.part;
  bucket.own_parameters = bucket.parameters.narrow(0, bucket.origin, bucket.part);
  const bool own_average = lends() || (bucket.own_master.defined() && !alone_);
  bucket.own_gradient = own_average ? at::zeros({bucket.part}, bucket.own_values().options())
                                    : bucket.gradients.narrow(0, bucket.origin, bucket.part);
  for (const flat::Bucket::Slot& place : plan.slots) {
    ZeroParameter& parameter = parameters_[place.tensor];
    const int64_t numel = parameter.tensor.numel();
    bucket.slots.push_back({place.tensor, place.offset, numel,
                            flat::range_in_part(place.offset, numel, part, bucket.part)});
    parameter.bucket = buckets_.size();
    if (values)
      flat::move_home(parameter.tensor, bucket.parameters, place.offset);
    else
      flat::adopt_home(parameter.tensor, bucket.parameters, place.offset);
  }
  reseat(bucket);
}

void ZeroBuckets::reseat(ZeroBucket& bucket) {
  for (const ZeroSlot& slot : bucket.slots) {
    ZeroParameter& parameter = parameters_[slot.parameter];
    parameter.view = flat::window(bucket.gradients, slot.offset, parameter.tensor.sizes(),
                                  parameter.tensor.strides());
    placement_.set_place(slot.parameter, parameter.view);
  }
}

int64_t ZeroBuckets::pool_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : pool_) bytes += static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

void ZeroBuckets::begin_backward() {
  placement_.begin();
  if (lends()) return;
  for (size_t i = 0; i < parameters_.size(); ++i)
    placement_.expect(i, !parameters_[i].tensor.grad().defined());
}

// A tensor that was allocated in a former taker's place and is still alive keeps the memory.
void ZeroBuckets::lend(size_t index) {
  ZeroBucket& bucket = buckets_[index];
  const bool taken = std::any_of(buckets_.begin(), buckets_.end(), [&](const ZeroBucket& one) {
    return one.buffer == bucket.buffer &&
           std::any_of(one.slots.begin(), one.slots.end(), [this](const ZeroSlot& slot) {
             return placement_.occupied(slot.parameter);
           });
  });
  if (taken) move_out(bucket);
  clear_padding(bucket);
  for (const ZeroSlot& slot : bucket.slots) {
    const ZeroParameter& parameter = parameters_[slot.parameter];
    if (parameter.arrived)
      place(slot.parameter);
    else
      placement_.expect(slot.parameter, !parameter.tensor.grad().defined());
  }
}

// A buffer's former taker has left values between the gradients and after the last one.
void ZeroBuckets::clear_padding(const ZeroBucket& bucket) {
  const at::NoGradGuard no_grad;
  int64_t end = 0;
  const auto clear = [&](int64_t until) {
    if (until > end) bucket.gradients.narrow(0, end, until - end).zero_();
  };
  for (const ZeroSlot& slot : bucket.slots) {
    clear(slot.offset);
    end = slot.offset + slot.numel;
  }
  clear(bucket.gradients.numel());
}

bool ZeroBuckets::place(size_t index, const at::Tensor& passed) {
  const at::NoGradGuard no_grad;
  ZeroParameter& parameter = parameters_[index];
  parameter.placed = false;
  at::Tensor& gradient =
      parameter.early.defined() ? parameter.early : parameter.tensor.mutable_grad();
  if (gradient.defined() && gradient.is_alias_of(parameter.view)) {
    // It is the view already, or a tensor of the caller's over the same memory.
    if (!flat::lies_in(gradient, parameter.view)) flat::move_into(parameter.view, gradient.clone());
  } else if (flat::lies_in(gradient, parameter.view)) {
    if (flat::kept_by_others(gradient, passed)) {
      flat::GradientPlacement::vacate(gradient);
      copied_bytes_ += static_cast<int64_t>(parameter.view.nbytes());
    }
  } else if (placement_.occupied(index)) {
    return false;
  } else if (gradient.defined()) {
    flat::move_into(parameter.view, gradient);
    copied_bytes_ += static_cast<int64_t>(parameter.view.nbytes());
  } else {
    parameter.view.zero_();
  }
  if (lends())
    gradient.reset();
  else
    gradient = parameter.view;
  parameter.placed = true;
  return true;
}

void ZeroBuckets::place_all(size_t index) {
  ZeroBucket& bucket = buckets_[index];
  for (const ZeroSlot& slot : bucket.slots) {
    const ZeroParameter& parameter = parameters_[slot.parameter];
    // A gradient that has not arrived may have been placed for an earlier backward, and changed
    // since.
    if (parameter.placed && (lends() || parameter.arrived)) continue;
    if (place(slot.parameter)) continue;
    move_out(bucket);
    place(slot.parameter);
  }
}

// For good, since a tensor in one of its places may live long.
void ZeroBuckets::move_out(ZeroBucket& bucket) {
  const at::NoGradGuard no_grad;
  if (lends()) {
    at::Tensor& buffer = pool_[bucket.buffer];
    const at::Tensor before = bucket.gradients;
    buffer = at::empty(buffer.sizes(), buffer.options());
    for (ZeroBucket& one : buckets_) {
      if (one.buffer != bucket.buffer) continue;
      one.gradients = buffer.narrow(0, 0, one.gradients.numel());
      reseat(one);
    }
    bucket.gradients.copy_(before);
    return;
  }
  const at::Tensor before = bucket.gradients;
  const bool own_average = bucket.has_own_average();
  bucket.gradients = before.clone();
  if (!own_average) bucket.own_gradient = bucket.gradients.narrow(0, bucket.origin, bucket.part);
  reseat(bucket);
  for (const ZeroSlot& slot : bucket.slots) {
    ZeroParameter& parameter = parameters_[slot.parameter];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(before)) gradient = parameter.view;
  }
}

void ZeroBuckets::check_places() const {
  for (const ZeroBucket& bucket : buckets_) {
    if (bucket.unit && !units_->here(*bucket.unit)) continue;
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
  for (ZeroParameter& parameter : parameters_) {
    parameter.arrived = false;
    parameter.placed = false;
    parameter.early.reset();
  }
  for (ZeroBucket& bucket : buckets_) {
    bucket.missing = bucket.slots.size();
    bucket.work = Work();
    bucket.arriving.reset();
  }
}

}  // namespace lockstep::inline v0::internal
