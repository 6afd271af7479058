// Reducer: averages the gradients of a set of parameters over the ranks while backward runs.
//
// Every parameter's gradient is a view into a flat bucket, which lies in symmetric memory where the
// backend has it. A hook on each parameter's gradient accumulator counts the bucket's gradients in;
// a full bucket is all-reduced as soon as all earlier ones were started, so the order is the same
// on all ranks. At the end of backward the rest is started and all are awaited. After Li et al.,
// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020).
//
// The first backward that communicates is watched: its gradients stay where autograd put them, and
// at its end the buckets are made in the order in which rank 0's arrived, filled and reduced. So
// the order is the true one, nothing is allocated twice, and which gradients are sparse is known.
//
// A parameter that a rank did not use in a backward contributes what its gradient held before (zero
// if it was undefined); for one that no rank used see Unused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/unused.h"
#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep {

namespace internal {
class RollCall;
struct Roll;
class ReducerState;
}  // namespace internal

struct ReducerOptions {
  flat::BucketSizes bucket_sizes = {};       // bytes: the first bucket, the others
  std::shared_ptr<CommHook> hook = nullptr;  // averages each bucket; null: a plain all_reduce
  Unused unused = Unused::kLeave;
  // Promises that every backward uses the same parameters, each equally often, as the first that
  // communicates. Then the ranks need not tell each other which they used, and a gradient may
  // arrive several times in one backward (from nested ones). Broken promises are InvalidArgument.
  bool static_graph = false;
};

// What averaging has cost this rank's backwards since the wrapper was made, in seconds.
struct ReducerTimes {
  // While gradients came: putting them into buckets, starting and moving on reductions.
  double during = 0;
  double waiting = 0;  // at the end of backward, for what was not over yet
  // Bytes of gradients that backward had not written into their buckets itself, and that were
  // copied there: all of the first backward's that communicates, then none where the steps are
  // alike (see flat/birthplaces.h).
  int64_t copied_bytes = 0;
};

class Reducer {
 public:
  // `parameters` require gradients and are the same on all ranks (check_same_on_all_ranks). Hooks
  // are put on them; they do nothing once the reducer is gone.
  Reducer(NamedTensors parameters, Communicator comm, ReducerOptions options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // To be called before a forward: forgets a backward that ended in an exception half-way. Forwards
  // of a model in training, with gradients enabled, are counted (`counts`): the count is part of
  // each bucket's call, so a rank that skipped a step is told apart from one that did not. Returns
  // whether it counted.
  bool before_forward(bool counts = true);
  int64_t forwards() const;  // counted ones
  int64_t batch() const;     // what follow()'s function returned at the last of them
  // What this returns becomes part of each bucket's call too: the number of batches taken from a
  // loader, say.
  void follow(std::function<int64_t()> batches);

  // Lets a backward through `output` end with the reduction even if it reaches parameters only in
  // nested backwards, or none. Tensors without a gradient are ignored.
  void watch(const at::Tensor& output);

  // Quiet backwards do not communicate: gradients add up on this rank, and the next backward that
  // does communicate averages all of them. A parameter counts as used if any of these backwards
  // used it. Of every `steps` backwards the last communicates; the count starts anew here. Throws
  // InvalidArgument unless steps is 1 or more.
  void accumulate(int64_t steps);
  // Whether a backward that began now would communicate.
  bool communicates() const;

  ReducerTimes times() const;
  size_t bucket_count() const;  // 0 before the first backward that communicates

  // For ranks that run out of data (join.h). While a roll call is set, it precedes every call that
  // the others then make along; shadow() makes one of them as a rank that has nothing to add.
  // Returns whether a reduction has ended with it.
  void set_roll_call(std::shared_ptr<internal::RollCall> roll_call);
  bool shadow(const internal::Roll& roll);

 private:
  friend class NoSync;
  std::shared_ptr<internal::ReducerState> state_;
};

// While it lives, all backwards are quiet, and are not counted by accumulate(). May be nested, and
// outlive the reducer.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<internal::ReducerState> state_;
};

}  // namespace lockstep
