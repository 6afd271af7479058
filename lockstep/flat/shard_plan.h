// Decides how flat buffers are divided among ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/flat/bucket_plan.h"

namespace lockstep::inline v0::flat {

struct ShardedBucket {
  Bucket bucket;  // numel is a multiple of the number of parts
  size_t group = 0;
  int64_t part = 0;  // elements of one part; part r begins at r * part
};

// A grain that means: the tensor is not divided.
inline constexpr int64_t kUncut = 0;

// Buckets like those that plan_buckets() makes of all tensors in reverse order, but with tensors of
// one group (groups[i] is tensor i's) in each, padded so that every part is a multiple of 64 bytes.
// Ordered by the tensor that fills them.
// Throws: InvalidArgument for less than one part.
//
// grains[i]: tensor i is divided only after a multiple of this many elements; 1: anywhere; kUncut:
// nowhere; without grains all are 1. Tensors and parts begin at multiples of 64 bytes, and so do
// the places where a tensor is divided: grain g counts as the least common multiple G of g and the
// elements of 64 bytes, and a tensor of no more than G > 64 bytes is not divided. Within a group,
// tensors with the same G > 64 bytes share buckets, and all others do. The parts are even within
// these bounds, where a bucket's tensors, each rounded up to 64 bytes, have T elements:
// - divided anywhere: a part is less than T / parts and 64 bytes.
// - divided after G: a part is less than T / parts + 2 * G, and the bucket is full at 8 * parts * G
//   at the earliest.
// - some are whole: a part is at most 65 / 64 of T / parts, the largest of those, and 64 bytes.
//   Without others each lies in the part that has least so far, the largest first; others fill up
//   the parts. The bucket is full at `parts` times the largest whole tensor of all at the earliest.
std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups,
                                       std::span<const int64_t> grains, int parts,
                                       BucketSizes sizes = {});
std::vector<ShardedBucket> plan_shards(std::span<const TensorSpec> tensors,
                                       std::span<const size_t> groups, int parts,
                                       BucketSizes sizes = {});

// Elements of a part; empty where begin == end.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The range of the bucket's elements [offset, offset + numel) in part `rank`.
Range range_in_part(int64_t offset, int64_t numel, int rank, int64_t part);

}  // namespace lockstep::inline v0::flat
