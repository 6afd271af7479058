#include "lockstep/parallel/zero/internal/zero_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::internal {

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
  if (ranks == 1) {
    if (options.accumulate) options.overlap = false;
    options.stage = 0;
    options.accumulate = false;
    options.units = {};
  }
  return options;
}

ZeroLayout layout_of(const ZeroOptions& options, int ranks, bool whole) {
  return {.parts = options.stage > 0 ? ranks : 1,
          .buffers = options.stage > 1 ? kZeroInFlight : 0,
          .one_copy = options.stage > 0 && options.one_copy,
          .whole = whole,
          .sizes = options.bucket_sizes,
          .copies = options.copies,
          .units = options.units.model ? &options.units : nullptr,
          .initial = options.initial ? &options.initial : nullptr};
}

std::vector<size_t> kinds_of(std::span<const size_t> groups, const UnitPlan& units) {
  std::vector<size_t> kinds(groups.begin(), groups.end());
  if (units.names.empty()) return kinds;
  for (size_t i = 0; i < kinds.size(); ++i)
    kinds[i] = kinds[i] * (units.names.size() + 1) + (units.unit[i] ? *units.unit[i] + 1 : 0);
  return kinds;
}

std::vector<flat::ShardedBucket> plan_zero_buckets(std::span<const flat::TensorSpec> specs,
                                                   std::span<const size_t> kinds,
                                                   const ZeroLayout& layout) {
  return layout.whole ? flat::plan_whole_shards(specs, kinds, layout.parts, layout.sizes)
                      : flat::plan_shards(specs, kinds, layout.parts, layout.sizes);
}

int64_t most_here(std::vector<int64_t> sizes, bool all) {
  if (all) return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return (sizes.empty() ? 0 : sizes[0]) + (sizes.size() > 1 ? sizes[1] : 0);
}

}  // namespace lockstep::internal
