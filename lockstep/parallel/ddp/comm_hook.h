// CommHook: averages a bucket of gradients for DistributedDataParallel in another way than a plain
// all_reduce, for example with fewer bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Gradients that one call carries.
struct GradBucket {
  size_t index = 0;  // buckets are reduced in this order, on all ranks
  // One-dimensional, of one dtype: this rank's gradients one after another, each padded to a cache
  // line; after finish(), the gradients for the optimizer.
  at::Tensor flat;
  std::vector<at::Tensor> gradients;  // the same memory in the parameters' shapes
};

// This class is the plain all_reduce. A hook belongs to one reducer and may keep state for each
// bucket. The thread that runs backward makes all calls; an exception ends the backward on this
// rank.
class LOCKSTEP_API CommHook {
 public:
  virtual ~CommHook() = default;

  // Called once, at the end of the first backward that communicates: the place to allocate
  // symmetric memory.
  // Collective: all ranks call it.
  virtual void prepare(Communicator& comm, std::span<const GradBucket> buckets);
  // The bucket's gradients are complete: starts to reduce them, and returns without waiting. The
  // note identifies the bucket's calls; pass it to every collective. All ranks make the same calls.
  virtual Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note);
  // Called after that Work has completed, in the buckets' order, before backward ends. May
  // communicate.
  virtual void finish(Communicator& comm, const GradBucket& bucket, const CallNote& note);
  // Whether the hook uses only `flat` of a bucket, as it is given with each call. Then gradients
  // lie in it with their parameters' strides, where backward can write them without a copy, and a
  // bucket may move to other memory between two backwards. Otherwise `gradients` are contiguous,
  // every gradient is copied into its bucket, and the memory given to prepare() stays. Default:
  // false.
  virtual bool flat_only() const;
};

// Averages float32 and float64 buckets in 16 bits: half the bytes, each gradient rounded to
// bfloat16 (8 bits of precision) or float16 (11, but none below 6e-8 and none above 65504). The sum
// is made in float32 and rounded once more.
// Throws: InvalidArgument for another dtype.
LOCKSTEP_API std::unique_ptr<CommHook> make_16_bit_hook(at::ScalarType dtype);

}  // namespace lockstep::inline v0
