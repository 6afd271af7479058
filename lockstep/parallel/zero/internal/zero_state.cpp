#include "lockstep/parallel/zero/internal/zero_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/core/text.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/muon.h"
#include "lockstep/parallel/zero/internal/unit_hooks.h"
#include "lockstep/parallel/zero/internal/zero_update.h"

namespace lockstep::inline v0::internal {
namespace {

Communicator own_group(Communicator comm) {
  return comm.size() == 1 ? comm : comm.duplicate();
}

constexpr const char* kWho = "ZeroOptimizer";

// One number of each rank, in rank order.
std::vector<double> of_all_ranks(Communicator& comm, double own) {
  const at::Tensor values = comm.all_gather(at::full({1}, own, at::kDouble));
  const double* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

}  // namespace

ZeroState::ZeroState(Communicator comm, std::vector<ZeroParameter> parameters,
                     std::span<const size_t> groups, const ZeroOptions& options,
                     std::vector<int64_t> grains)
    : comm_(own_group(std::move(comm))),
      options_(resolved(options, comm_.size())),
      buckets_(comm_, std::move(parameters), groups,
               layout_of(options_, comm_.size(), std::move(grains))),
      on_device_(!comm_.capabilities().device.is_cpu()) {
  if (options_.stage < 3 || buckets_.host_copy() != nullptr || on_device_) return;
  throw InvalidArgument(
      "ZeroOptimizer: stage 3 keeps one copy of the parameters a host, for which backend " +
      comm_.capabilities().backend +
      " has no memory (or the ranks of a host do not follow each other); take shm, hierarchical or "
      "stage 2");
}

ZeroState::~ZeroState() {
  for (HookHandle& handle : unit_hooks_) handle.remove();
}

void ZeroState::install_hooks() {
  if (buckets_.units()) {
    // The callback holds this weakly, because a running hook keeps the units alive.
    buckets_.units()->on_turn([weak = weak_from_this()](bool ended) {
      if (const auto self = std::static_pointer_cast<ZeroState>(weak.lock()))
        self->take_turn(ended);
    });
    unit_hooks_ = hook_units(*options_.units.model, buckets_.units());
  }
  std::vector<at::Tensor> parameters;
  for (const ZeroParameter& parameter : buckets_.parameters())
    parameters.push_back(parameter.tensor);
  watch(parameters);
}

// Whether all ranks have gradients; false if none has any. Throws Mismatch if only some do.
bool ZeroState::agree_on_arrival() {
  constexpr double kHeld = 2;
  const bool held_units = buckets_.units() && buckets_.units()->held();
  std::vector<int> with, without, holders;
  const std::vector<double> all =
      of_all_ranks(comm_, held_units ? kHeld : static_cast<double>(arrived_));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == kHeld) holders.push_back(static_cast<int>(r));
    (all[r] != 0 ? with : without).push_back(static_cast<int>(r));
  }
  if (!holders.empty())
    throw InvalidArgument("ZeroOptimizer: step() while rank(s) " + joined(holders) +
                          " hold the parameters (whole_parameters()); let go of them first");
  if (!with.empty() && !without.empty()) {
    throw Mismatch("ZeroOptimizer: rank(s) " + joined(without) +
                   " called step() without a backward since the last one, and rank(s) " +
                   joined(with) + " after one; all ranks must call backward equally often");
  }
  return without.empty();
}

// Names the parameters that no rank used.
void ZeroState::check_used() {
  const std::vector<ZeroParameter>& parameters = buckets_.parameters();
  const auto n = static_cast<int64_t>(parameters.size());
  const at::Tensor used = at::zeros({n}, at::kByte);
  for (size_t i = 0; i < parameters.size(); ++i)
    used.mutable_data_ptr<uint8_t>()[i] = parameters[i].used ? 1 : 0;
  comm_.all_reduce(used, ReduceOp::kMax);
  std::vector<std::string> missing;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (used.const_data_ptr<uint8_t>()[i] == 0) missing.push_back("'" + parameters[i].name + "'");
  }
  if (missing.empty()) return;
  throw InvalidArgument("ZeroOptimizer: no rank's backward reached " + joined(missing) +
                        "; mend the model, freeze them, or let ignore_unused count their gradients "
                        "as zero");
}

double ZeroState::sum_of_squares_of_all() {
  const double mine = optim::sum_of_squares(own_gradients());
  if (!sharded()) return mine;
  double sum = 0;
  for (const double part : of_all_ranks(comm_, mine)) sum += part;
  return sum;
}

std::shared_ptr<void> ZeroState::whole_parameters() {
  const std::shared_ptr<GatheredUnits>& units = buckets_.units();
  if (!units) return nullptr;
  units->need_all();
  return {units.get(), [held = std::weak_ptr(units)](void*) {
            if (const auto still = held.lock()) still->let_all();
          }};
}

// The first parameter with a gradient that is not finite, from the lowest rank that has one.
std::string ZeroState::first_not_finite() {
  const std::vector<ZeroParameter>& parameters = buckets_.parameters();
  auto first = static_cast<double>(parameters.size());
  for (const ZeroBucket& bucket : buckets_.buckets()) {
    for (const ZeroSlot& slot : bucket.slots) {
      if (slot.own.empty()) continue;
      const at::Tensor part =
          bucket.own_gradient.narrow(0, slot.own.begin, slot.own.end - slot.own.begin);
      if (!std::isfinite(optim::sum_of_squares({part})))
        first = std::min(first, static_cast<double>(slot.parameter));
    }
  }
  const std::vector<double> all = of_all_ranks(comm_, first);
  const auto index = static_cast<size_t>(*std::min_element(all.begin(), all.end()));
  return index < parameters.size() ? "'" + parameters[index].name + "'"
                                   : "no single one: their squares overflow";
}

// Whether the device with all parts can decide: none may take its first step, which allocates the
// state that later steps find.
bool ZeroState::device_decides(const optim::StepOptions& options, const Groups& groups) const {
  if (!optim::device_may_decide(options)) return false;
  for (const ZeroBucket& bucket : buckets_.buckets()) {
    const at::Device device = bucket.own_gradient.device();
    if (device.is_cpu() || device != buckets_.buckets().front().own_gradient.device()) return false;
    if (dynamic_cast<const optim::MuonOptions*>(&groups[bucket.group].options()) != nullptr)
      return false;
  }
  return std::all_of(buckets_.parameters().begin(), buckets_.parameters().end(),
                     [](const ZeroParameter& one) { return one.steps > 0; });
}

at::Tensor ZeroState::norm_on_device() {
  const at::Tensor own = optim::global_norm_tensor(own_gradients());
  return sharded() ? comm_.all_gather(own.square().view({1})).sum().sqrt() : own;
}

// The decision is the same on all ranks.
optim::StepDecision ZeroState::decide(const optim::StepOptions& options, const Groups& groups,
                                      optim::StepResult* result) {
  optim::check_step_options(options, kWho);
  if (device_decides(options, groups))
    return optim::decide_step_on_device(
        options, buckets_.buckets().front().own_gradient.device(), [&] { return norm_on_device(); },
        result);
  return optim::decide_step(
      options, kWho, [&] { return std::sqrt(sum_of_squares_of_all()); },
      [&] { return first_not_finite(); }, result);
}

void ZeroState::settle_counts() {
  if (!left_out_.defined()) return;
  const auto count = static_cast<int64_t>(std::exchange(left_out_, {}).item<float>());
  for (ZeroParameter& parameter : buckets_.parameters()) parameter.steps -= count;
}

optim::StepResult ZeroState::step(const optim::StepOptions& options, const Groups& groups) {
  const at::NoGradGuard no_grad;
  optim::StepResult result;
  struct Forget {
    ZeroState& state;
    ~Forget() { state.forget(); }
  } forget{*this};
  settle();
  if (buckets_.units()) buckets_.units()->before_change();
  {
    const Stopwatch watch(times_.waiting);
    if (!agree_on_arrival()) return result;
    if (!options_.ignore_unused) check_used();
  }
  const optim::StepDecision decision = decide(options, groups, &result);
  if (decision.skipped) {
    result.skipped = true;
    return result;
  }
  update(decision, groups);
  if (decision.found_inf.defined())
    left_out_ = left_out_.defined() ? left_out_ + decision.found_inf : decision.found_inf;
  return result;
}

void ZeroState::update(const optim::StepDecision& decision, const Groups& groups) {
  HostCopy* copy = buckets_.host_copy();
  std::vector<at::Tensor> flats;
  for (ZeroBucket& bucket : buckets_.buckets()) {
    {
      const Stopwatch watch(times_.updating);
      update_part(bucket, buckets_.parameters(), decision, left_out_,
                  groups[bucket.group].options());
    }
    const Stopwatch watch(times_.gathering);
    if (copy != nullptr) {
      if (bucket.unit)
        copy->join(std::span(&bucket.kept, 1));
      else
        flats.push_back(bucket.parameters);
    } else if (sharded())
      bucket.work = comm_.iall_gather(bucket.parameters, bucket.own_parameters);
    comm_.progress();
  }
  const Stopwatch watch(times_.gathering);
  if (copy != nullptr) copy->publish(flats);
  if (buckets_.units()) buckets_.units()->changed();
  for (ZeroBucket& bucket : buckets_.buckets()) bucket.work.wait();
}

void ZeroState::parameters_changed() {
  if (buckets_.units()) buckets_.units()->before_change();
  std::vector<at::Tensor> flats;
  for (ZeroBucket& bucket : buckets_.buckets()) {
    if (HostCopy* const copy = buckets_.host_copy()) {
      if (bucket.unit)
        copy->join(std::span(&bucket.kept, 1));
      else
        flats.push_back(bucket.parameters);
    } else if (sharded()) {
      comm_.iall_gather(bucket.parameters, bucket.own_parameters).wait();
    }
    for (const ZeroSlot& slot : bucket.slots)
      buckets_.parameters()[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }
  if (buckets_.host_copy() != nullptr) buckets_.host_copy()->publish(flats);
  if (buckets_.units()) buckets_.units()->changed();
}

ZeroMemory ZeroState::planned_memory(const Groups& groups, const ZeroAlgorithm& defaults) const {
  const HostCopy* copy = buckets_.host_copy();
  std::vector<std::string> names;
  for (const ZeroParameter& parameter : buckets_.parameters()) names.push_back(parameter.name);
  return plan_memory(groups, defaults, options_,
                     {.all = comm_.size(),
                      .sharing = copy == nullptr ? 1 : copy->sharers(),
                      .keepers = copy == nullptr ? 1 : copy->keepers(),
                      .one_copy = copy != nullptr},
                     names);
}

ZeroMemory ZeroState::memory() const {
  ZeroMemory memory;
  const auto bytes = [](const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); };
  const HostCopy* copy = buckets_.host_copy();
  const auto share = [&](int64_t bytes) {
    return copy == nullptr ? bytes : bytes / copy->sharers();
  };
  for (const ZeroBucket& bucket : buckets_.buckets()) {
    memory.parameters += share(bytes(bucket.unit ? bucket.kept.own : bucket.parameters));
    if (bucket.has_own_average()) memory.gradients += bytes(bucket.own_gradient);
    if (!buckets_.lends()) memory.gradients += bytes(bucket.gradients);
    if (bucket.own_master.defined()) memory.masters += bytes(bucket.own_master);
    for (const at::Tensor& state : bucket.states) memory.state += bytes(state);
  }
  memory.buffers = buckets_.pool_bytes();
  if (buckets_.units()) memory.units = share(buckets_.units()->most_bytes());
  return memory;
}

void ZeroState::forget() {
  buckets_.reset();
  forget_round();
  rounds_ = 0;
  held_ = false;
  settled_ = false;
  arrived_ = false;
}

}  // namespace lockstep::inline v0::internal
