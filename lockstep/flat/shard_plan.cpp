#include "lockstep/flat/shard_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat {
namespace {

constexpr int64_t kPartAlignment = 64;  // bytes: a cache line

int64_t aligned_for(at::ScalarType dtype) {
  return kPartAlignment / static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Places tensors one after another; a tensor that a border would cut elsewhere than after a
// multiple of `grain` starts later, by less than a grain, since parts are multiples of it. One
// grain more per part is therefore enough room for all of them.
ShardedBucket divided(Bucket bucket, size_t group, int parts, int64_t grain,
                      std::span<const TensorSpec> tensors) {
  const int64_t aligned = aligned_for(bucket.dtype);
  ShardedBucket result;
  result.group = group;
  result.part = rounded_up((bucket.numel + parts - 1) / parts, grain);
  for (;; result.part += grain) {
    int64_t end = 0;
    for (Bucket::Slot& slot : bucket.slots) {
      const int64_t numel = tensors[slot.tensor].numel;
      slot.offset = end;
      if (numel > 0) {
        const int64_t border = (end / result.part + 1) * result.part;
        if (border < end + numel) slot.offset += (border - end) % grain;
      }
      end = slot.offset + rounded_up(numel, aligned);
    }
    if (end <= parts * result.part) break;
  }
  bucket.numel = parts * result.part;
  result.bucket = std::move(bucket);
  return result;
}

// Slots keep the order in which they begin.
ShardedBucket dealt(Bucket bucket, size_t group, int parts, std::span<const TensorSpec> tensors) {
  const int64_t aligned = aligned_for(bucket.dtype);
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
    held[part] += rounded_up(tensors[slot.tensor].numel, aligned);
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

struct Sized {
  size_t tensor = 0;
  int64_t numel = 0;  // rounded up
};

// Fills part after part: first the whole tensors that fit, the largest first, then others, the
// smallest first, the last of which continues in the next part. Gaps remain only where whole
// tensors alone are left, each smaller than one of those. Returns nullopt where they do not all
// fit.
std::optional<std::vector<Bucket::Slot>> filled(std::vector<Sized> whole,
                                                const std::vector<Sized>& others, int parts,
                                                int64_t part) {
  std::vector<Bucket::Slot> slots;
  int64_t end = 0;
  size_t taken = 0;
  const auto put = [&](const Sized& one) {
    slots.push_back({one.tensor, end});
    end += one.numel;
  };
  for (int64_t border = part; border <= parts * part; border += part) {
    if (end >= border) continue;
    for (auto one = whole.begin(); one != whole.end();) {
      if (end + one->numel > border) {
        ++one;
        continue;
      }
      put(*one);
      one = whole.erase(one);
    }
    while (end < border && taken < others.size()) put(others[taken++]);
    if (end < border) end = border;
  }
  for (; taken < others.size() && others[taken].numel == 0; ++taken) put(others[taken]);
  if (!whole.empty() || taken < others.size() || end > parts * part) return std::nullopt;
  return slots;
}

ShardedBucket mixed(Bucket bucket, size_t group, int parts, std::span<const TensorSpec> tensors,
                    std::span<const int64_t> grains) {
  constexpr int64_t kSteps = 64;
  const int64_t aligned = aligned_for(bucket.dtype);
  std::vector<Sized> whole, others;
  for (const Bucket::Slot& slot : bucket.slots)
    (grains[slot.tensor] == kUncut ? whole : others)
        .push_back({slot.tensor, rounded_up(tensors[slot.tensor].numel, aligned)});
  if (others.empty() || bucket.numel == 0) return dealt(std::move(bucket), group, parts, tensors);
  std::stable_sort(whole.begin(), whole.end(),
                   [](const Sized& a, const Sized& b) { return a.numel > b.numel; });
  std::stable_sort(others.begin(), others.end(),
                   [](const Sized& a, const Sized& b) { return a.numel < b.numel; });
  const int64_t least = rounded_up((bucket.numel + parts - 1) / parts, aligned);
  ShardedBucket result;
  result.group = group;
  result.part = std::max(least, whole.front().numel);
  const int64_t step = std::max(aligned, least / kSteps / aligned * aligned);
  while (true) {
    if (auto slots = filled(whole, others, parts, result.part)) {
      bucket.slots = std::move(*slots);
      break;
    }
    result.part += step;
  }
  bucket.numel = parts * result.part;
  result.bucket = std::move(bucket);
  return result;
}

// The key of shared buckets: tensors of a group that may be divided alike. Whole tensors and those
// that may be divided anywhere have the grain 1.
struct Kind {
  size_t group = 0;
  int64_t grain = 1;
  auto operator<=>(const Kind&) const = default;
};

int64_t real_grain(const TensorSpec& tensor, int64_t grain) {
  if (grain == kUncut) return kUncut;
  const int64_t aligned = aligned_for(tensor.dtype);
  const int64_t both = std::lcm(grain, aligned);
  if (both == aligned) return 1;
  return tensor.numel <= both ? kUncut : both;
}

}  // namespace

std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups,
                                       std::span<const int64_t> given, int parts,
                                       BucketSizes sizes) {
  constexpr int64_t kGrains = 8;  // minimum number of grains per part, where there are so many
  if (parts < 1)
    throw InvalidArgument("a bucket cannot be divided into " + std::to_string(parts) + " parts");
  std::vector<int64_t> grains(tensors.size(), 1);
  std::map<Kind, std::vector<size_t>> order;
  int64_t largest_whole = 0;  // bytes
  for (size_t i = tensors.size(); i-- > 0;) {
    if (parts > 1 && !given.empty()) grains[i] = real_grain(tensors[i], given[i]);
    const bool whole = grains[i] == kUncut;
    order[{groups[i], whole ? 1 : grains[i]}].push_back(i);
    if (whole)
      largest_whole =
          std::max(largest_whole,
                   tensors[i].numel * static_cast<int64_t>(c10::elementSize(tensors[i].dtype)));
  }
  std::vector<ShardedBucket> result;
  for (const auto& [kind, indices] : order) {
    const bool has_whole =
        std::any_of(indices.begin(), indices.end(), [&](size_t i) { return grains[i] == kUncut; });
    int64_t least = has_whole ? parts * largest_whole : 0;
    if (kind.grain > 1) {
      int64_t widest = 0;  // bytes of an element
      for (const size_t i : indices)
        widest = std::max(widest, static_cast<int64_t>(c10::elementSize(tensors[i].dtype)));
      least = kGrains * parts * kind.grain * widest;
    }
    const BucketSizes full{.first = std::max(sizes.first, least),
                           .rest = std::max(sizes.rest, least)};
    for (Bucket& bucket : plan_buckets(tensors, indices, full)) {
      const bool some_whole =
          std::any_of(bucket.slots.begin(), bucket.slots.end(),
                      [&](const Bucket::Slot& slot) { return grains[slot.tensor] == kUncut; });
      const int64_t grain = std::max(kind.grain, aligned_for(bucket.dtype));
      result.push_back(some_whole ? mixed(std::move(bucket), kind.group, parts, tensors, grains)
                                  : divided(std::move(bucket), kind.group, parts, grain, tensors));
    }
  }
  // The lower the lowest index, the later in backward the bucket is complete.
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

std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups, int parts,
                                       BucketSizes sizes) {
  return plan_shards(tensors, groups, {}, parts, sizes);
}

Range range_in_part(int64_t offset, int64_t numel, int rank, int64_t part) {
  const int64_t first = rank * part;
  const int64_t begin = std::clamp<int64_t>(offset - first, 0, part);
  const int64_t end = std::clamp<int64_t>(offset + numel - first, begin, part);
  return {begin, end};
}

}  // namespace lockstep::inline v0::flat
