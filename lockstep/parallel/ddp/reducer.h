// Reducer: averages the gradients of a set of parameters over the ranks while backward runs.
//
// Every parameter's gradient is a view into a flat bucket, which lies in symmetric memory where the
// backend has it. A hook on each parameter's gradient accumulator counts the bucket's gradients. A
// full bucket is all-reduced as soon as all earlier ones have started, so the order is the same on
// all ranks. At the end of backward the others are started and all are awaited. After Li et al.,
// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020).
//
// The first backward that communicates is watched: its gradients stay where autograd put them, and
// at its end the buckets are made in the order of arrival on rank 0, filled and reduced. The order
// is therefore the true one, nothing is allocated twice, and it is known which gradients are
// sparse.
//
// A parameter that a rank did not use in a backward contributes its former gradient (zero if it was
// undefined); for one that no rank used see Unused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/unused.h"
#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep::inline v0 {

namespace internal {
class JoinProtocol;
struct JoinState;
class ReducerState;
}  // namespace internal

// The options of a Reducer.
struct ReducerOptions {
  flat::BucketSizes bucket_sizes = {};       // bytes: the first bucket, the others
  std::shared_ptr<CommHook> hook = nullptr;  // averages each bucket; null: a plain all_reduce
  Unused unused = Unused::kLeave;            // for parameters that no rank used
  // Promises that every backward uses the same parameters, each equally often, as the first that
  // communicates. Then the ranks need not exchange which they used, and a gradient may arrive
  // several times in one backward (from nested ones). A broken promise is InvalidArgument.
  bool static_graph = false;
};

// The cost of averaging for this rank's backwards since the wrapper was made, in seconds.
struct ReducerTimes {
  // While gradients arrive: putting them into buckets, starting and progressing reductions.
  double during = 0;
  double waiting = 0;  // at the end of backward, for pending reductions
  // Bytes of gradients that backward did not write into their buckets itself and that were copied
  // there: all of the first backward that communicates, then none where the steps are alike (see
  // flat/gradient_placement.h).
  int64_t copied_bytes = 0;
};

class LOCKSTEP_API Reducer {
 public:
  // `parameters` require gradients and are the same on all ranks (check_same_on_all_ranks). Hooks
  // are put on them; they have no effect once the reducer is gone.
  Reducer(NamedTensors parameters, Communicator comm, ReducerOptions options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Called before a forward: forgets a backward that ended in an exception half-way. Forwards of a
  // model in training, with gradients enabled, are counted (`counts`): the count is part of each
  // bucket's call, so a rank that skipped a step is detected. Returns whether it counted.
  bool before_forward(bool counts = true);
  int64_t forwards() const;  // counted forwards
  int64_t batch() const;     // the result of follow()'s function at the last of them
  // The result of `batches` becomes part of each bucket's call too, for example the number of
  // batches taken from a loader.
  void follow(std::function<int64_t()> batches);

  // Makes a backward through `output` end with the reduction even if it reaches parameters only in
  // nested backwards, or none. Tensors without a gradient are ignored.
  void watch(const at::Tensor& output);

  // Quiet backwards do not communicate: gradients add up on this rank, and the next backward that
  // communicates averages all of them. A parameter counts as used if any of these backwards used
  // it. Of every `steps` backwards the last communicates; the count starts anew here.
  // Throws: InvalidArgument unless steps is 1 or more.
  void accumulate(int64_t steps);
  // Whether a backward that began now would communicate.
  bool communicates() const;

  ReducerTimes times() const;   // so far
  size_t bucket_count() const;  // 0 before the first backward that communicates

  // For ranks that run out of data (join.h). While a join protocol is set, it precedes every call
  // that the others then shadow; shadow() makes one of these calls for a rank that has nothing to
  // add. Returns whether a reduction has ended with it.
  void set_join_protocol(std::shared_ptr<internal::JoinProtocol> join_protocol);
  bool shadow(const internal::JoinState& join_state);

 private:
  friend class NoSync;
  std::shared_ptr<internal::ReducerState> state_;
};

// While it lives, all backwards are quiet, and accumulate() does not count them. It may be nested,
// and may outlive the reducer.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<internal::ReducerState> state_;
};

}  // namespace lockstep::inline v0
