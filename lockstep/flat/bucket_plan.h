// Decides which parameters share a flat buffer, and at which places. Pure.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::flat {

// The properties of a tensor that a plan has to know.
struct TensorSpec {
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// Bytes; as in PyTorch's DistributedDataParallel: a small first bucket, so that communication
// starts early in backward.
struct BucketSizes {
  int64_t first = int64_t{1} << 20;
  int64_t rest = int64_t{25} << 20;
};

// A flat buffer, and what lies in it.
struct Bucket {
  // The place of one tensor.
  struct Slot {
    size_t tensor = 0;   // index into the specs
    int64_t offset = 0;  // of the tensor's first element in the bucket, in elements
  };
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t numel = 0;  // padding included
  std::vector<Slot> slots;
};

// Puts every tensor of `order` (indices, each at most once) into one bucket, in that order, with
// tensors of one dtype and device per bucket; a bucket is full once it has reached its size.
// Tensors start at multiples of 64 bytes. Buckets are ordered by the tensor that fills them, so
// that the order of reduction follows backward if `order` is that of the gradients. Equal input
// gives equal output on all ranks.
LOCKSTEP_API std::vector<Bucket> plan_buckets(std::span<const TensorSpec> tensors,
                                              std::span<const size_t> order,
                                              BucketSizes sizes = {});
// All tensors in reverse order, in which backward tends to produce gradients.
LOCKSTEP_API std::vector<Bucket> plan_buckets(std::span<const TensorSpec> tensors,
                                              BucketSizes sizes = {});

}  // namespace lockstep::inline v0::flat
