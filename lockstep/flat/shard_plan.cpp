#include "lockstep/flat/shard_plan.h"

#include <algorithm>
#include <functional>
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

// Slots stay in the order in which they begin.
ShardedBucket dealt(Bucket bucket, size_t group, int parts, std::span<const TensorSpec> tensors) {
  const int64_t aligned = kPartAlignment / static_cast<int64_t>(c10::elementSize(bucket.dtype));
  std::vector<Bucket::Slot> largest_first = bucket.slots;
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](const auto& a, const auto& b) {
    return tensors[a.tensor].numel > tensors[b.tensor].numel;
  });
  std::vector<int64_t> held(static_cast<size_t>(parts), 0);
  std::vector<std::vector<Bucket::Slot>> by_part(held.size());
  for (Bucket::Slot slot : largest_first) {
    const auto part =
        static_cast<size_t>(std::min_element(held.begin(), held.end()) - held.begin());
    slot.offset = held[part];
    held[part] += (tensors[slot.tensor].numel + aligned - 1) / aligned * aligned;
    by_part[part].push_back(slot);
  }
  ShardedBucket result;
  result.group = group;
  result.part = *std::max_element(held.begin(), held.end());
  bucket.slots.clear();
  for (size_t part = 0; part < by_part.size(); ++part) {
    for (Bucket::Slot slot : by_part[part]) {
      slot.offset += static_cast<int64_t>(part) * result.part;
      bucket.slots.push_back(slot);
    }
  }
  bucket.numel = parts * result.part;
  result.bucket = std::move(bucket);
  return result;
}

std::vector<ShardedBucket> plan_by_group(
    std::span<const TensorSpec> tensors, std::span<const size_t> groups, int parts,
    BucketSizes sizes, const std::function<ShardedBucket(Bucket, size_t group)>& divide) {
  if (parts < 1)
    throw InvalidArgument("a bucket cannot be divided into " + std::to_string(parts) + " parts");
  std::map<size_t, std::vector<size_t>> order;  // by group
  for (size_t i = tensors.size(); i-- > 0;) order[groups[i]].push_back(i);
  std::vector<ShardedBucket> result;
  for (const auto& [group, indices] : order) {
    for (Bucket& bucket : plan_buckets(tensors, indices, sizes))
      result.push_back(divide(std::move(bucket), group));
  }
  // The lower the lowest index, the later in backward is the bucket complete.
  const auto lowest = [](const ShardedBucket& one) {
    const auto& slots = one.bucket.slots;
    return std::min_element(slots.begin(), slots.end(),
                            [](const auto& a, const auto& b) { return a.tensor < b.tensor; })
        ->tensor;
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const auto& a, const auto& b) { return lowest(a) > lowest(b); });
  return result;
}

}  // namespace

std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups, int parts,
                                       BucketSizes sizes) {
  return plan_by_group(tensors, groups, parts, sizes, [parts](Bucket bucket, size_t group) {
    return divided(std::move(bucket), group, parts);
  });
}

std::vector<ShardedBucket> plan_whole_shards(std::span<const TensorSpec> tensors,
                                             std::span<const size_t> groups, int parts,
                                             BucketSizes sizes) {
  int64_t largest = 0;
  for (const TensorSpec& tensor : tensors)
    largest =
        std::max(largest, tensor.numel * static_cast<int64_t>(c10::elementSize(tensor.dtype)));
  sizes.first = std::max(sizes.first, parts * largest);
  sizes.rest = std::max(sizes.rest, parts * largest);
  return plan_by_group(tensors, groups, parts, sizes, [&](Bucket bucket, size_t group) {
    return dealt(std::move(bucket), group, parts, tensors);
  });
}

Range range_in_part(int64_t offset, int64_t numel, int rank, int64_t part) {
  const int64_t first = rank * part;
  const int64_t begin = std::clamp<int64_t>(offset - first, 0, part);
  const int64_t end = std::clamp<int64_t>(offset + numel - first, begin, part);
  return {begin, end};
}

}  // namespace lockstep::flat
