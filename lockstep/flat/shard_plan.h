// Flat buffers that are divided among ranks: a pure decision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/flat/bucket_plan.h"

namespace lockstep::flat {

struct ShardedBucket {
  Bucket bucket;  // numel is a multiple of the number of parts
  size_t group = 0;
  int64_t part = 0;  // elements of one part; part r begins at r * part
};

// Buckets as plan_buckets() makes them of all tensors in reverse order, but with tensors of one
// group (groups[i] is tensor i's) in each, padded so that every part is a multiple of 64 bytes.
// Ordered by the tensor that fills them. Throws InvalidArgument for less than one part.
std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups, int parts,
                                       BucketSizes sizes = {});

// The same, but no tensor is divided: each lies in one part, in the one that has least so far, the
// largest first. Buckets hold at least `parts` times their largest tensor, so that parts are of similar
// size; what a part lacks to the largest is padding.
std::vector<ShardedBucket> plan_whole_shards(std::span<const TensorSpec> tensors,
                                             std::span<const size_t> groups, int parts,
                                             BucketSizes sizes = {});

// Elements of a part; empty where begin == end.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Where in part `rank` the elements [offset, offset + numel) of the bucket lie.
Range range_in_part(int64_t offset, int64_t numel, int rank, int64_t part);

}  // namespace lockstep::flat
