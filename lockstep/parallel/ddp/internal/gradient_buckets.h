// Where gradients live: every parameter's is a view into a flat bucket, in symmetric memory where
// the backend has it. Not used directly: see reducer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/flat/birthplaces.h"
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
  int expected = 1;        // arrivals that a backward brings
  int arrivals = 0;        // in this backward
  bool displaced = false;  // it arrived, but its place is taken by another tensor
  bool earlier = false;    // used in a backward without communication since the last with one
  at::Tensor before;  // what it held before the reduction, if it was not used but had a gradient

  bool complete() const { return arrivals >= expected; }
};

struct Bucket {
  at::Tensor flat;
  std::vector<size_t> gradients;  // indices
  size_t missing = 0;             // of this backward
  std::vector<size_t> waiting;    // gradients that are there, but not in `flat` yet
  std::string note;               // of the reduction under way
  Work work;
};

class GradientBuckets {
 public:
  // `movable`: buckets may move to other memory between backwards, and gradients lie in them with
  // their parameters' strides, so backward can write them there itself. Throws InvalidArgument
  // unless each parameter is a leaf that requires a gradient.
  GradientBuckets(const NamedTensors& parameters, bool movable);

  // Makes the buckets, for gradients in this order of arrival; sparse ones get none. Those that
  // have arrived move in, bucket by bucket, so that no two copies of all are there at once.
  // Collective, the same arguments on all ranks.
  void make(Communicator& comm, std::span<const size_t> order, flat::BucketSizes sizes);
  bool made() const { return made_; }
  // What ranks must have alike beside order and sizes; nothing where all is contiguous.
  std::string layout() const;

  // A backward begins on this thread, or has ended.
  void begin_backward();
  void end_backward() noexcept;
  // The gradient is there: remembers where autograd had put it.
  void arrived(size_t index) { births_.arrived(index, gradients_[index].parameter.grad()); }

  // Makes .grad the view of its bucket. It is copied there unless it was born there: it may be
  // elsewhere after zero_grad(), set to none or not, or where user code put another tensor. False:
  // another tensor lives in that place, which may still be read; it may be gone at the end of
  // backward. In a gradient's own hook, `passed` is what on_gradient() says. Throws InvalidArgument
  // for a sparse one.
  bool place(size_t index, const at::Tensor& passed = {});
  // The same, but what a device copies may wait for place_waiting(), which copies all of a bucket by one operation.
  bool place_with_bucket(size_t index, const at::Tensor& passed);
  void place_waiting(size_t bucket);
  // As place(), but the bucket moves to ordinary memory if that other tensor is still there. Not
  // while the bucket is being reduced.
  void place_anyhow(size_t index);
  // Zeros in the view of a gradient that is undefined, likewise.
  void clear_anyhow(size_t index);
  // Of gradients that were not born in their places, or had to leave them, since the beginning.
  int64_t copied_bytes() const { return copied_bytes_; }
  // For a hook, by bucket.
  const std::vector<GradBucket>& shown() const { return shown_; }

  std::vector<Gradient>& gradients() { return gradients_; }
  const std::vector<Gradient>& gradients() const { return gradients_; }
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Everything as before a backward; no work may be under way.
  void reset();

 private:
  void put_into(Bucket& bucket, size_t index, int64_t offset);
  void move_out(size_t index);
  GradBucket show(size_t bucket) const;

  std::vector<Gradient> gradients_;
  std::vector<Bucket> buckets_;
  std::vector<GradBucket> shown_;
  bool movable_;
  flat::Birthplaces births_;
  int64_t copied_bytes_ = 0;
  bool made_ = false;
};

}  // namespace lockstep::internal
