#include "lockstep/parallel/zero/internal/zero_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0::internal {

ZeroOptions resolved(ZeroOptions options, int ranks) {
  if (options.stage < 0 || options.stage > 3)
    throw InvalidArgument("ZeroOptimizer: stage is " + std::to_string(options.stage) +
                          ", it must be 0, 1, 2 or 3");
  if (options.accumulate && options.stage < 2)
    throw InvalidArgument("ZeroOptimizer: accumulate is for stages 2 and 3; in stage " +
                          std::to_string(options.stage) + " take no_sync()");
  if (options.stage == 3 && !options.one_copy)
    throw InvalidArgument("ZeroOptimizer: stage 3 is one_copy; take stage 2 without it");
  if (options.stage != 3 && options.units.model)
    throw InvalidArgument("ZeroOptimizer: units are for stage 3, which divides parameters");
  if (options.reduce_float32 && !options.master_weights)
    throw InvalidArgument("ZeroOptimizer: reduce_float32 is for master_weights");
  if (ranks == 1) {
    if (options.accumulate) options.overlap = false;
    options.stage = 0;
    options.accumulate = false;
    options.units = {};
  }
  return options;
}

bool has_master(bool masters, at::ScalarType dtype) {
  return masters && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

ZeroShards shards_of(const ZeroOptions& options, const optim::Algorithm& algorithm,
                     const NamedTensors& parameters) {
  const bool muon = std::holds_alternative<optim::MuonOptions>(algorithm);
  ZeroShards shards{.policy = options.policy, .choice = {}};
  if (shards.policy.rules.empty() && muon)
    shards.policy.rules = {{.cut = flat::Cut::kWhole, .dims = 2}};
  shards.choice = flat::choose_shards(shards.policy, parameters);
  for (size_t i = 0; muon && i < parameters.size(); ++i) {
    const size_t rule = shards.choice.rule[i];
    const auto& rules = shards.policy.rules;
    if (rule < rules.size() && rules[rule].cut == flat::Cut::kWhole) continue;
    throw InvalidArgument("ZeroOptimizer: Muon takes whole matrices, and '" + parameters[i].first +
                          "' is cut by " + flat::name_of_rule(shards.policy, rule) +
                          " of the policy; give it a rule with Cut::kWhole");
  }
  return shards;
}

ZeroLayout layout_of(const ZeroOptions& options, int ranks, std::vector<int64_t> grains) {
  return {.parts = options.stage > 0 ? ranks : 1,
          .buffers = options.stage > 1 ? kZeroInFlight : 0,
          .masters = options.master_weights,
          .one_copy = options.stage > 0 && options.one_copy,
          .sizes = options.bucket_sizes,
          .grains = std::move(grains),
          .copies = options.copies,
          .units = options.units.model ? &options.units : nullptr,
          .initial = options.initial ? &options.initial : nullptr};
}

std::string name_of(const std::vector<std::string>& names, size_t index) {
  return index < names.size() ? names[index] : "parameter " + std::to_string(index);
}

namespace {

// The kinds of buckets: by group, and within a group by unit.
std::vector<size_t> kinds_of(std::span<const size_t> groups, const UnitPlan& units) {
  std::vector<size_t> kinds(groups.begin(), groups.end());
  if (units.names.empty()) return kinds;
  for (size_t i = 0; i < kinds.size(); ++i)
    kinds[i] = kinds[i] * (units.names.size() + 1) + (units.unit[i] ? *units.unit[i] + 1 : 0);
  return kinds;
}

}  // namespace

std::vector<flat::ShardedBucket> plan_zero_buckets(std::span<const flat::TensorSpec> specs,
                                                   std::span<const size_t> groups,
                                                   const UnitPlan& units,
                                                   const ZeroLayout& layout) {
  std::vector<flat::ShardedBucket> plans =
      flat::plan_shards(specs, kinds_of(groups, units), layout.grains, layout.parts, layout.sizes);
  if (!units.names.empty() && !specs.front().device.is_cpu())
    std::stable_partition(plans.begin(), plans.end(), [&](const flat::ShardedBucket& plan) {
      return units.unit[plan.bucket.slots.front().tensor].has_value();
    });
  return plans;
}

int64_t most_here(std::vector<int64_t> sizes, bool all) {
  if (all) return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return (sizes.empty() ? 0 : sizes[0]) + (sizes.size() > 1 ? sizes[1] : 0);
}

}  // namespace lockstep::inline v0::internal
