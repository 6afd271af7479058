// CommHook: how DistributedDataParallel averages a bucket of gradients, for those who want another
// way than a plain all_reduce: fewer bits, or something of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/types.h"

namespace lockstep {

struct GradBucket {
  size_t index = 0;  // buckets are reduced in this order, on all ranks
  // One-dimensional, of one dtype: this rank's gradients one after another, each padded to a cache
  // line; after finish(), what the optimizer is to see.
  at::Tensor flat;
  std::vector<at::Tensor> gradients;  // the same memory in the parameters' shapes
};

// This one is the plain all_reduce. One reducer's: a hook may keep state for each bucket. All calls
// come from the thread that runs backward; what they throw ends the backward, on this rank.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // Once, at the end of the first backward that communicates: the place for symmetric memory.
  // Collective.
  virtual void prepare(Communicator& comm, std::span<const GradBucket> buckets);
  // The bucket's gradients are there: starts to reduce them, and returns without waiting. The note
  // tells the bucket's calls from others; give it to every collective. On all ranks the same
  // operations.
  virtual Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note);
  // After that Work, in the buckets' order, before backward ends. May communicate.
  virtual void finish(Communicator& comm, const GradBucket& bucket, const CallNote& note);
  // Whether the hook uses of a bucket only `flat`, as it is given with each call. Then gradients lie
  // in it with their parameters' strides, where backward can write them without a copy, and a bucket
  // may move to other memory between two backwards. False if not said: `gradients` are contiguous,
  // every gradient is copied into its bucket, and what prepare() was given stays.
  virtual bool flat_only() const;
};

// Averages float32 and float64 buckets in 16 bits: half the bytes, each gradient rounded to
// bfloat16 (8 bits of precision) or float16 (11, but none below 6e-8 and none above 65504). The sum
// is made in float32 and rounded once more. Throws InvalidArgument for another dtype.
std::unique_ptr<CommHook> make_16_bit_hook(at::ScalarType dtype);

}  // namespace lockstep
