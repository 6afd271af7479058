// GradientAverager: average_gradients() while backward runs, for loops of the program's own.
//
//   broadcast_parameters(model, comm);
//   GradientAverager averager(model, comm);      // once
//   ...
//   optimizer.zero_grad();
//   loss(model, batch).backward();               // ends with the averages in the gradients
//   optimizer.step();
//
// It is the Reducer of DistributedDataParallel without the rest of that: nothing wraps the forward,
// and buffers are each rank's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::inline v0 {

// From its construction on, every backward() through one of the parameters is collective: when it
// ends, every rank has the average of the ranks' gradients, which are views into flat buckets
// (reducer.h). All ranks must call backward equally often; a rank without samples makes one whose
// loss is zero, or use average_gradients(), which needs none. Frozen parameters are left out. Not
// copyable, not movable.
// Thread-safety: one thread at a time.
// Throws: backward throws the communicator's errors; the gradients are then unspecified.
class LOCKSTEP_API GradientAverager {
 public:
  // `model`: of any kind, or a list (flat/named_tensors.h). Its values are not compared or copied:
  // broadcast_parameters() does that. It makes a group of its own of the communicator's ranks.
  // Collective: all ranks construct it.
  // Throws: InvalidArgument where no parameter requires a gradient; Mismatch that names the first
  // parameter of another name, shape, dtype or requires_grad on some rank.
  template <AnyModel M>
  GradientAverager(const M& model, Communicator comm, ReducerOptions options = {})
      : GradientAverager(parameters_of(model), kind_of(model), std::move(comm),
                         std::move(options)) {}
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  // May be called before each forward in training. Then ranks that have made different numbers of
  // forwards get Mismatch instead of averages of different steps, a backward that has thrown
  // half-way is forgotten, and a parameter that was added, replaced, unfrozen or converted since is
  // InvalidArgument that names it.
  template <AnyModel M>
  void before_forward(const M& model) {
    wrapped_.check(model);
    reducer_.before_forward();
  }

  // While the guard lives, backward() does not communicate; the first one after it averages what
  // has added up. On all ranks in the same backwards.
  NoSync no_sync() { return NoSync(reducer_); }
  // Only the last of every `steps` backwards communicates: see reducer.h.
  void accumulate(int64_t steps) { reducer_.accumulate(steps); }
  bool communicates() const { return reducer_.communicates(); }

  // A communicator of its own, of the same ranks as the given one.
  Communicator& comm() { return comm_; }
  ReducerTimes times() const { return reducer_.times(); }  // so far
  // 0 before the first backward that communicates.
  size_t bucket_count() const { return reducer_.bucket_count(); }

 private:
  GradientAverager(const NamedTensors& parameters, ModelKind kind, Communicator comm,
                   ReducerOptions options);

  flat::WrappedParameters wrapped_;
  Communicator comm_;
  Reducer reducer_;
};

}  // namespace lockstep::inline v0
