// Where gradients live: every parameter's is a view into a flat bucket, in symmetric memory where
// the backend has it. Not used directly: see reducer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep::internal {

// A parameter, and how far its gradient is in this backward.
struct Gradient {
  static constexpr size_t kNoBucket = ~size_t{0};

  std::string name;
  at::Tensor parameter;
  at::Tensor view;            // of its bucket, in the parameter's shape
  size_t bucket = kNoBucket;  // none: before the buckets are made, and of sparse gradients
  bool sparse = false;
  int expected = 1;      // arrivals that a backward brings
  int arrivals = 0;      // in this backward
  bool earlier = false;  // used in a backward without communication since the last with one
  at::Tensor before;     // what it held before the reduction, if it was not used but had a gradient
  std::shared_ptr<void> hook;

  bool complete() const { return arrivals >= expected; }
  // Whether .grad is the view already.
  bool in_place() const;
  // Copies .grad into the view, if it is elsewhere (zero_grad(), set to none or not, and user code
  // may have put another tensor in the view's place), and makes it the view.
  void place();
};

struct Bucket {
  at::Tensor flat;
  std::vector<size_t> gradients;  // indices
  size_t missing = 0;             // of this backward
  std::string note;               // of the reduction under way
  Work work;
};

class GradientBuckets {
 public:
  // Throws InvalidArgument unless each parameter is a leaf that requires a gradient.
  explicit GradientBuckets(NamedTensors parameters);

  // Makes the buckets, for gradients in this order of arrival; sparse ones get none. Those that
  // have arrived move in, bucket by bucket, so that no two copies of all are there at once.
  // Collective, the same arguments on all ranks.
  void make(Communicator& comm, std::span<const size_t> order, flat::BucketSizes sizes);
  bool made() const { return made_; }
  std::vector<GradBucket> shown() const;  // for a hook

  std::vector<Gradient>& gradients() { return gradients_; }
  const std::vector<Gradient>& gradients() const { return gradients_; }
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Everything as before a backward; no work may be under way.
  void reset();

 private:
  std::vector<Gradient> gradients_;
  std::vector<Bucket> buckets_;
  bool made_ = false;
};

}  // namespace lockstep::internal
