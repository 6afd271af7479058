#include "lockstep/parallel/zero/zero_optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <typeinfo>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/memory_limit.h"
#include "lockstep/core/text.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"
#include "lockstep/parallel/zero/internal/zero_state.h"
#include "lockstep/parallel/zero/internal/zero_update.h"

namespace lockstep::inline v0 {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

std::unique_ptr<OptimizerOptions> options_of(const ZeroAlgorithm& algorithm) {
  return std::visit(
      [](const auto& options) -> std::unique_ptr<OptimizerOptions> {
        return std::make_unique<std::decay_t<decltype(options)>>(options);
      },
      algorithm);
}

std::vector<OptimizerParamGroup> one_group(const NamedTensors& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& entry : parameters) tensors.push_back(entry.second);
  return {OptimizerParamGroup(std::move(tensors))};
}

std::vector<std::string> names_of(const NamedTensors& parameters) {
  std::vector<std::string> names;
  for (const auto& entry : parameters) names.push_back(entry.first);
  return names;
}

bool same_kind(const ZeroAlgorithm& algorithm, const OptimizerOptions& options) {
  return std::visit([&](const auto& own) { return typeid(own) == typeid(options); }, algorithm);
}

// All parameters of all groups, with their names and groups.
struct Listed {
  std::vector<internal::ZeroParameter> parameters;
  NamedTensors named;
  std::vector<size_t> groups;
};

Listed listed(const std::vector<OptimizerParamGroup>& groups, const std::vector<std::string>& names,
              const ZeroAlgorithm& algorithm) {
  Listed result;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].has_options() && !same_kind(algorithm, groups[g].options())) {
      throw InvalidArgument("ZeroOptimizer: the options of group " + std::to_string(g) +
                            " are another optimizer's than the defaults");
    }
    for (const at::Tensor& tensor : groups[g].params()) {
      const size_t index = result.named.size();
      const std::string name = internal::name_of(names, index);
      result.named.emplace_back(name, tensor);
      internal::ZeroParameter& parameter = result.parameters.emplace_back();
      parameter.name = name;
      parameter.tensor = tensor;
      result.groups.push_back(g);
    }
  }
  if (!names.empty() && names.size() != result.named.size()) {
    throw InvalidArgument("ZeroOptimizer: " + std::to_string(names.size()) + " names for " +
                          std::to_string(result.named.size()) + " parameters");
  }
  if (result.named.empty())
    throw InvalidArgument("ZeroOptimizer: there is no parameter to optimize");
  internal::check_parameters(result.parameters);
  if (const auto* muon = std::get_if<optim::MuonOptions>(&algorithm)) {
    optim::check(*muon);
    for (const OptimizerParamGroup& group : groups) {
      if (group.has_options())
        optim::check(static_cast<const optim::MuonOptions&>(group.options()));
    }
    for (const auto& [name, tensor] : result.named)
      optim::check_muon_parameter(tensor, "ZeroOptimizer: parameter '" + name + "'");
  }
  return result;
}

// Before anything is allocated, and on all ranks: exceeding a control group's limit would otherwise
// end in a kill. Ranks of one group share its limit.
void check_fits(Communicator& comm, const ZeroMemory& planned) {
  struct Rank {
    double needed, allowed, host, group;  // numbers below 2^53
  };
  const std::optional<MemoryLimit> limit = memory_limit();
  const int64_t needed = planned.parameters + planned.gradients + planned.state + planned.buffers +
                         planned.units + planned.masters;
  const Rank own{
      static_cast<double>(needed),
      limit ? static_cast<double>(limit->bytes) : std::numeric_limits<double>::infinity(),
      static_cast<double>(comm.node_rank()),
      limit ? static_cast<double>(limit->id) : -1.0 - comm.rank()};
  const at::Tensor all = comm.all_gather(
      at::tensor({own.needed, own.allowed, own.host, own.group}, at::kDouble).view({1, 4}));
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < all.size(0); ++r) {
    const double* const row = all.const_data_ptr<double>() + 4 * r;
    ranks.push_back({row[0], row[1], row[2], row[3]});
  }
  for (const Rank& one : ranks) {
    double together = 0;
    std::vector<int> members;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].host != one.host || ranks[r].group != one.group) continue;
      together += ranks[r].needed;
      members.push_back(static_cast<int>(r));
    }
    if (together <= one.allowed) continue;
    const auto mib = [](double bytes) {
      return std::to_string(std::llround(bytes / (1 << 20))) + " MiB";
    };
    throw InvalidArgument(
        "ZeroOptimizer: rank(s) " + joined(members) + " of " + std::to_string(comm.size()) +
        " need " + mib(together) +
        " for parameters, gradients, state and buffers, and their control group " + "allows " +
        mib(one.allowed) +
        "; take more ranks with memory of their own, a higher stage, or a "
        "smaller model");
  }
}

// The memory planned for the present ranks; 0 for memory that is not here, or does not stay.
ZeroMemory planned_here(Communicator& comm, const std::vector<OptimizerParamGroup>& groups,
                        const ZeroAlgorithm& defaults, const ZeroOptions& options,
                        const std::vector<std::string>& names) {
  if (options.units.model && !comm.capabilities().device.is_cpu()) return {};
  for (const OptimizerParamGroup& group : groups) {
    for (const at::Tensor& one : group.params())
      if (!one.is_cpu()) return {};
  }
  int sharing = std::max(1, comm.local_size());
  const auto& copies = options.copies;
  if (copies.size() == static_cast<size_t>(comm.size()))
    sharing = static_cast<int>(
        std::count(copies.begin(), copies.end(), copies[static_cast<size_t>(comm.rank())]));
  return plan_memory(
      groups, defaults, options,
      {.all = comm.size(), .sharing = sharing, .one_copy = comm.capabilities().shared_memory},
      names);
}

// Allocates the disk space now, and throws on all ranks if one has none.
void make_states(Communicator& comm, std::vector<internal::ZeroBucket>& buckets,
                 const std::string& directory, const std::vector<OptimizerParamGroup>& groups) {
  std::exception_ptr error;
  for (internal::ZeroBucket& bucket : buckets) {
    bucket.state_directory = directory;
    const size_t count = optim::states_of(groups[bucket.group].options());
    try {
      if (!error && count > 0) bucket.state(count - 1);
    } catch (...) {  // the other ranks are told below
      error = std::current_exception();
    }
  }
  const at::Tensor all = comm.all_gather(at::full({1}, error ? 1 : 0, at::kByte));
  if (error) std::rethrow_exception(error);
  std::vector<int64_t> without;
  for (int64_t r = 0; r < all.numel(); ++r)
    if (all.const_data_ptr<uint8_t>()[r] != 0) without.push_back(r);
  if (!without.empty())
    throw Error("ZeroOptimizer: rank(s) " + joined(without) +
                " cannot put the optimizer's state into " + directory + "; they say why");
}

// Called before parameters move: if a unit cannot be hooked it throws, and the model is unchanged.
void check_doors(const ZeroUnits& units) {
  if (!units.model) return;
  const std::vector<std::string> names =
      units.names.empty() ? layers_of(*units.model) : modules_named(*units.model, units.names);
  for (const std::string& name : names) {
    const auto same = [](const Forward& forward, const at::Tensor& x) { return forward(x); };
    wrap_forward(*units.model, name, same).remove();
  }
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(Communicator comm, const NamedTensors& parameters,
                             const ZeroAlgorithm& algorithm, const ZeroOptions& options)
    : ZeroOptimizer(std::move(comm), one_group(parameters), names_of(parameters), algorithm,
                    options) {}

ZeroOptimizer::ZeroOptimizer(Communicator comm, const std::vector<OptimizerParamGroup>& groups,
                             const std::vector<std::string>& names, const ZeroAlgorithm& defaults,
                             const ZeroOptions& options)
    // Errors in the groups are first reported with Lockstep's own messages.
    : Optimizer((listed(groups, names, defaults), groups), options_of(defaults)),
      defaults_(defaults) {
  // libtorch (2.13) replaces every value that equals its class's own default by the defaults: a
  // group's weight decay of 0 would be lost.
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].has_options()) param_groups()[i].set_options(groups[i].options().clone());
  }
  Listed all = listed(groups, names, defaults);
  const bool sixteen_bits = std::any_of(all.named.begin(), all.named.end(), [](const auto& entry) {
    return internal::has_master(true, entry.second.scalar_type());
  });
  if (options.master_weights && !sixteen_bits)
    throw InvalidArgument(
        "ZeroOptimizer: master_weights, and no parameter has 16 bits; convert the model first: "
        "model->to(at::kBFloat16)");
  internal::ZeroShards shards = internal::shards_of(options, defaults, all.named);
  sharding_ = flat::to_text(shards.policy, shards.choice);
  check_same_on_all_ranks(comm, all.named);
  ZeroMemory planned = planned_here(comm, groups, defaults, options, names);
  if (!options.state_directory.empty()) planned.state = 0;  // the system can evict its pages
  check_fits(comm, planned);
  if (!options.copies.empty() && !options.units.model && !comm.capabilities().device.is_cpu())
    throw InvalidArgument(
        "ZeroOptimizer: on devices copies are of units, which their ranks divide; give "
        "ZeroUnits, or leave copies out");
  check_doors(options.units);
  state_ = std::make_shared<internal::ZeroState>(comm, std::move(all.parameters), all.groups,
                                                 options, std::move(shards.choice.grains));
  if (!options.state_directory.empty())
    make_states(state_->comm(), state_->buckets().buckets(), options.state_directory,
                param_groups());
  state_->install_hooks();
}

ZeroOptimizer::~ZeroOptimizer() = default;

optim::StepResult ZeroOptimizer::step(const optim::StepOptions& options) {
  return state_->step(options, param_groups());
}

at::Tensor ZeroOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  step(optim::StepOptions{});
  return loss;
}

void ZeroOptimizer::leave_out() {
  optim::StepOptions skipped;
  skipped.found_inf = at::ones({1});
  step(skipped);
}

void ZeroOptimizer::step_unless(const at::Tensor& found_inf) {
  optim::StepOptions options;
  options.found_inf = found_inf;
  step(options);
}

void ZeroOptimizer::settle() const {
  state_->settle_counts();
}

std::shared_ptr<void> ZeroOptimizer::whole_parameters() {
  return state_->whole_parameters();
}

void ZeroOptimizer::synchronize() {
  state_->settle();
}

std::optional<std::vector<at::Tensor>> ZeroOptimizer::own_gradients() {
  return state_->own_gradients();
}

ZeroMemory ZeroOptimizer::memory() const {
  return state_->memory();
}

ZeroMemory ZeroOptimizer::planned_memory() const {
  return state_->planned_memory(param_groups(), defaults_);
}

int64_t ZeroOptimizer::state_numel() const {
  int64_t numel = 0;
  for (const internal::ZeroBucket& bucket : state_->buckets().buckets()) {
    for (const at::Tensor& state : bucket.states) numel += state.numel();
  }
  return numel;
}

size_t ZeroOptimizer::bucket_count() const {
  return state_->buckets().buckets().size();
}

ZeroTimes ZeroOptimizer::times() const {
  return state_->times();
}

CommunicatorStats ZeroOptimizer::stats() const {
  return state_->comm().stats();
}

ZeroOptimizer::NoSync::NoSync(ZeroOptimizer& optimizer) : state_(optimizer.state_) {
  state_->silence(1);
}

ZeroOptimizer::NoSync::~NoSync() {
  if (state_) state_->silence(-1);
}

}  // namespace lockstep::inline v0
