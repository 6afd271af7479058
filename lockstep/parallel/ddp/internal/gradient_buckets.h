// The memory of gradients: every parameter's gradient is a view into a flat bucket, in symmetric
// memory where the backend has it. Not used directly: see reducer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/gradient_placement.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep::inline v0::internal {

// A parameter, and the progress of its gradient in this backward.
struct Gradient {
  static constexpr size_t kNoBucket = ~size_t{0};

  std::string name;
  at::Tensor parameter;
  at::Tensor view;            // of its bucket, in the parameter's shape
  size_t bucket = kNoBucket;  // none: before the buckets are made, and for sparse gradients
  bool sparse = false;
  int expected = 1;        // arrivals in a backward
  int arrivals = 0;        // in this backward
  bool displaced = false;  // it arrived, but another tensor occupies its place
  bool earlier = false;    // used in a backward without communication since the last with one
  at::Tensor before;       // its former value, if it was not used but had a gradient

  bool complete() const { return arrivals >= expected; }
};

struct Bucket {
  at::Tensor flat;
  std::vector<size_t> gradients;  // indices
  size_t missing = 0;             // in this backward
  std::vector<size_t> waiting;    // gradients that have arrived, but are not in `flat` yet
  std::string note;               // the current reduction's
  Work work;
};

class GradientBuckets {
 public:
  // `movable`: buckets may move to other memory between backwards, and gradients lie in them with
  // their parameters' strides, so backward can write them there itself.
  // Throws: InvalidArgument unless each parameter is a leaf that requires a gradient.
  GradientBuckets(const NamedTensors& parameters, bool movable);

  // Makes the buckets, for gradients in this order of arrival; sparse ones get none. Arrived
  // gradients move in bucket by bucket, so that there are never two copies of all of them.
  // Collective: all ranks call it with the same arguments.
  void make(Communicator& comm, std::span<const size_t> order, flat::BucketSizes sizes);
  bool made() const { return made_; }
  // The properties that ranks must share beside order and sizes; "" where all is contiguous.
  std::string layout() const;

  // A backward begins on this thread, or has ended.
  void begin_backward();
  void end_backward() noexcept;
  // The gradient has arrived: remembers where autograd had put it.
  void arrived(size_t index) { placement_.arrived(index, gradients_[index].parameter.grad()); }

  // Makes .grad the view of its bucket. The gradient is copied there unless it was placed there: it
  // may be elsewhere after zero_grad(), set to none or not, or where user code set another tensor.
  // Returns false if another tensor lies in that place, which may still be read; it may be gone at
  // the end of backward. In a gradient's own hook, `passed` is that of on_gradient().
  // Throws: InvalidArgument for a sparse one.
  bool place(size_t index, const at::Tensor& passed = {});
  // The same, but a device's copies may wait for place_waiting(), which copies all of a bucket in
  // one operation.
  bool place_with_bucket(size_t index, const at::Tensor& passed);
  void place_waiting(size_t bucket);
  // Does the same as place(), but moves the bucket to ordinary memory if that other tensor is still
  // there.
  // Requires: the bucket is not being reduced.
  void place_or_move(size_t index);
  // Sets the view of an undefined gradient to zero, and moves the bucket like place_or_move().
  void clear_or_move(size_t index);
  // The bytes of gradients, since the beginning, that were not placed directly or had to leave
  // their places.
  int64_t copied_bytes() const { return copied_bytes_; }
  // The buckets as hooks see them.
  const std::vector<GradBucket>& shown() const { return shown_; }

  std::vector<Gradient>& gradients() { return gradients_; }
  const std::vector<Gradient>& gradients() const { return gradients_; }
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Restores the state before a backward.
  // Requires: no pending work.
  void reset();

 private:
  void put_into(Bucket& bucket, size_t index, int64_t offset);
  void move_out(size_t index);
  GradBucket show(size_t bucket) const;

  std::vector<Gradient> gradients_;
  std::vector<Bucket> buckets_;
  std::vector<GradBucket> shown_;
  bool movable_;
  flat::GradientPlacement placement_;
  int64_t copied_bytes_ = 0;
  bool made_ = false;
};

}  // namespace lockstep::inline v0::internal
