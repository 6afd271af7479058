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

namespace lockstep::internal {
namespace {

Communicator own_group(Communicator comm) {
  return comm.size() == 1 ? comm : comm.duplicate();
}

void check_one(const at::Tensor& tensor, const char* name) {
  if (tensor.numel() != 1 || !at::isFloatingType(tensor.scalar_type()))
    throw InvalidArgument(std::string("ZeroOptimizer: ") + name +
                          " must be one floating-point element");
}
double one_value(const at::Tensor& tensor, const char* name) {
  check_one(tensor, name);
  return tensor.item<double>();
}

void check_max_norm(double max_norm) {
  if (!(max_norm > 0))
    throw InvalidArgument("ZeroOptimizer: max_norm is " + std::to_string(max_norm) +
                          ", it must be above 0");
}

// One number of every rank, in rank order.
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
    // Hooks hold the units for as long as one of them runs, and this for as long as there are any.
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

// Whether there is a gradient at all: on all ranks or on none.
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
  std::vector<at::Tensor> own;
  for (const ZeroBucket& bucket : buckets_.buckets()) own.push_back(bucket.own_gradient);
  const double mine = optim::sum_of_squares(own);
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

// The first parameter, by the lowest rank that has one, whose gradient is not finite.
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

// What the gradients must be divided by, or nothing if the step is to be skipped. The same on all
// ranks.
std::optional<double> ZeroState::divisor_for(const optim::StepOptions& options,
                                             optim::StepResult* result) {
  if (options.max_norm) check_max_norm(*options.max_norm);
  const double scale =
      options.grad_scale.defined() ? one_value(options.grad_scale, "grad_scale") : 1;
  if (!(scale > 0)) throw InvalidArgument("ZeroOptimizer: grad_scale must be above 0");
  const bool found = options.found_inf.defined();
  if (found && one_value(options.found_inf, "found_inf") != 0) return std::nullopt;
  double divisor = scale;
  if (!options.max_norm && (found || !options.grad_scale.defined())) return divisor;
  const double norm = std::sqrt(sum_of_squares_of_all()) / scale;
  result->grad_norm = norm;
  if (std::isfinite(norm)) {
    if (options.max_norm) divisor *= std::max(1.0, (norm + 1e-6) / *options.max_norm);
    return divisor;
  }
  if (found || options.grad_scale.defined() || options.on_non_finite == optim::NonFinite::kSkip)
    return std::nullopt;
  throw Error("ZeroOptimizer: the gradients' norm is not finite (first: " + first_not_finite() +
              "); the step was not taken. Lower the learning rate, look for a division by zero, or "
              "skip such steps (NonFinite::kSkip)");
}

// Whether the device that all parts are on can decide: none takes its first step, which makes what the others find.
bool ZeroState::device_decides(const optim::StepOptions& options, const Groups& groups) const {
  const auto there = [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); };
  if (!there(options.found_inf) && !there(options.grad_scale) &&
      !(options.max_norm && options.on_non_finite == optim::NonFinite::kSkip))
    return false;
  for (const ZeroBucket& bucket : buckets_.buckets()) {
    const at::Device device = bucket.own_gradient.device();
    if (device.is_cpu() || device != buckets_.buckets().front().own_gradient.device()) return false;
    if (dynamic_cast<const optim::MuonOptions*>(&groups[bucket.group].options()) != nullptr)
      return false;
  }
  return std::all_of(buckets_.parameters().begin(), buckets_.parameters().end(),
                     [](const ZeroParameter& one) { return one.steps > 0; });
}

ZeroDecision ZeroState::decide_on_device(const optim::StepOptions& options,
                                         optim::StepResult* result) {
  std::vector<at::Tensor> own;
  for (const ZeroBucket& bucket : buckets_.buckets()) own.push_back(bucket.own_gradient);
  const auto here = own.front().options().dtype(at::kDouble);
  const auto bring = [&](const at::Tensor& one, const char* name) {
    check_one(one, name);
    return one.is_cpu() ? at::full({}, one.item<double>(), here)
                        : one.detach().reshape({}).to(here, /*non_blocking=*/true);
  };
  at::Tensor divisor = options.grad_scale.defined() ? bring(options.grad_scale, "grad_scale")
                                                    : at::full({}, 1.0, here);
  at::Tensor found =
      options.found_inf.defined() ? bring(options.found_inf, "found_inf").ne(0) : at::Tensor();
  if (options.max_norm || !found.defined()) {
    at::Tensor squares = optim::global_norm_tensor(own).square();
    if (sharded()) squares = comm_.all_gather(squares.view({1})).sum();
    result->norm = squares.sqrt() / divisor;
    const at::Tensor wrong = result->norm.isfinite().logical_not();
    found = found.defined() ? found.logical_or(wrong) : wrong;
    if (options.max_norm)
      divisor = divisor * ((result->norm + 1e-6) / *options.max_norm).clamp_min(1);
  }
  if (options.grad_scale.defined()) found = found.logical_or(divisor.gt(0).logical_not());
  const at::Tensor inf = found.to(at::kFloat);
  ZeroDecision decision{
      .device_divisor = divisor.to(at::kFloat), .found_inf = inf, .left_out = left_out_};
  left_out_ = left_out_.defined() ? left_out_ + inf : inf;
  return decision;
}

std::optional<ZeroDecision> ZeroState::decide(const optim::StepOptions& options,
                                              const Groups& groups, optim::StepResult* result) {
  if (device_decides(options, groups)) {
    if (options.max_norm) check_max_norm(*options.max_norm);
    return decide_on_device(options, result);
  }
  const std::optional<double> divisor = divisor_for(options, result);
  if (!divisor) return std::nullopt;
  return ZeroDecision{.divisor = *divisor, .left_out = left_out_};
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
  const std::optional<ZeroDecision> decision = decide(options, groups, &result);
  if (decision)
    update(*decision, groups);
  else
    result.skipped = true;
  return result;
}

void ZeroState::update(const ZeroDecision& decision, const Groups& groups) {
  HostCopy* copy = buckets_.host_copy();
  std::vector<at::Tensor> flats;
  for (ZeroBucket& bucket : buckets_.buckets()) {
    {
      const Stopwatch watch(times_.updating);
      update_part(bucket, buckets_.parameters(), decision, groups[bucket.group].options());
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

}  // namespace lockstep::internal
