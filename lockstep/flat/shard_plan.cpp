#include "lockstep/flat/shard_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::flat {
namespace {

constexpr int64_t kPartAlignment = 64;  // bytes: a cache line

ShardedBucket divided(Bucket bucket, size_t group, int parts) {
  const int64_t aligned = kPartAlignment / static_cast<int64_t>(c10::elementSize(bucket.dtype));
  const int64_t unit = aligned * parts;
  ShardedBucket result;
  result.group = group;
  bucket.numel = (bucket.numel + unit - 1) / unit * unit;
  result.part = bucket.numel / parts;
  result.bucket = std::move(bucket);
  return result;
}

}  // namespace

std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups, int parts,
                                       BucketSizes sizes) {
  if (parts < 1)
    throw InvalidArgument("a bucket cannot be divided into " + std::to_string(parts) + " parts");
  std::map<size_t, std::vector<size_t>> order;  // by group
  for (size_t i = tensors.size(); i-- > 0;) order[groups[i]].push_back(i);
  std::vector<ShardedBucket> result;
  for (const auto& [group, indices] : order) {
    for (Bucket& bucket : plan_buckets(tensors, indices, sizes))
      result.push_back(divided(std::move(bucket), group, parts));
  }
  // The lower the last tensor's index, the later in backward its gradient comes.
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return a.bucket.slots.back().tensor > b.bucket.slots.back().tensor;
  });
  return result;
}

Range range_in_part(int64_t offset, int64_t numel, int rank, int64_t part) {
  const int64_t first = rank * part;
  const int64_t begin = std::clamp<int64_t>(offset - first, 0, part);
  const int64_t end = std::clamp<int64_t>(offset + numel - first, begin, part);
  return {begin, end};
}

}  // namespace lockstep::flat
