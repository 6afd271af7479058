// The memory of ZeroOptimizer's parts, computed from its plans.
#include <optional>
#include <string>
#include <vector>

#include "lockstep/flat/shard_plan.h"
#include "lockstep/flat/turn_plan.h"
#include "lockstep/parallel/zero/internal/unit_plan.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0 {
namespace {

using torch::optim::OptimizerOptions;

const OptimizerOptions& of_defaults(const ZeroAlgorithm& defaults) {
  return std::visit([](const auto& one) -> const OptimizerOptions& { return one; }, defaults);
}

}  // namespace

ZeroMemory plan_memory(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const ZeroAlgorithm& defaults, const ZeroOptions& given,
                       const ZeroRanks& ranks, const std::vector<std::string>& names) {
  const ZeroOptions options = internal::resolved(given, ranks.all);
  std::vector<at::Tensor> parameters;
  std::vector<flat::TensorSpec> specs;
  std::vector<size_t> group_of;
  NamedTensors named;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const at::Tensor& one : groups[g].params()) {
      parameters.push_back(one);
      specs.push_back(
          {one.numel(), one.scalar_type(), one.is_meta() ? at::Device(at::kCPU) : one.device()});
      group_of.push_back(g);
      named.emplace_back(internal::name_of(names, named.size()), one);
    }
  }
  const internal::ZeroLayout layout = internal::layout_of(
      options, ranks.all, internal::shards_of(options, defaults, named).choice.grains);
  const bool one_copy = layout.one_copy && ranks.one_copy;
  const int64_t sharing = one_copy ? ranks.sharing : 1;
  internal::UnitPlan units;
  const int64_t kept = one_copy ? sharing * ranks.keepers : 1;  // parts of a unit's bucket
  if (layout.units != nullptr && kept < ranks.all)
    units = internal::plan_units(*layout.units->model, layout.units->names, parameters);
  const std::vector<flat::ShardedBucket> plans =
      internal::plan_zero_buckets(specs, group_of, units, layout);

  ZeroMemory memory;
  std::vector<flat::TensorSpec> buckets;
  std::vector<int64_t> foreign(units.names.size());  // of each unit: bytes of other hosts
  for (const flat::ShardedBucket& plan : plans) {
    buckets.push_back({plan.bucket.numel, plan.bucket.dtype, plan.bucket.device});
    const size_t first = plan.bucket.slots.front().tensor;
    const auto element = static_cast<int64_t>(c10::elementSize(plan.bucket.dtype));
    const int64_t all = plan.bucket.numel * element, part = plan.part * element;
    const std::optional<size_t> unit = units.names.empty() ? std::nullopt : units.unit[first];
    if (unit) foreign[*unit] += all - kept * part;
    memory.parameters += (unit ? kept * part : all) / sharing;
    const bool master = internal::has_master(layout.masters, plan.bucket.dtype);
    const int64_t values = plan.part * (master ? int64_t{sizeof(float)} : element);
    if (layout.buffers > 0 || (master && ranks.all > 1)) memory.gradients += values;
    if (layout.buffers == 0) memory.gradients += all;
    if (master) memory.masters += values;
    const auto& group = groups[group_of[first]];
    const OptimizerOptions& how = group.has_options() ? group.options() : of_defaults(defaults);
    memory.state += static_cast<int64_t>(optim::states_of(how)) * values;
  }
  if (layout.buffers > 0) {
    for (const flat::TensorSpec& buffer : flat::plan_turns(buckets, layout.buffers).buffers)
      memory.buffers += buffer.numel * static_cast<int64_t>(c10::elementSize(buffer.dtype));
  }
  memory.units =
      internal::most_here(std::move(foreign), !options.units.reshard_after_forward) / sharing;
  return memory;
}

}  // namespace lockstep::inline v0
