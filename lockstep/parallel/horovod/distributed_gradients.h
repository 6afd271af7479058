// DistributedGradients: averages gradients in Horovod's way (Sergeev and Del Balso,
// arXiv:1802.05799), for any optimizer. DistributedOptimizer (distributed_optimizer.h) combines
// this with an optimizer.
//
// Hooks on the parameters notice each gradient as backward produces it. At up to `rounds` points of
// a backward the ranks exchange, one bit per parameter, which gradients they have; those that all
// ranks have are copied into fused buffers and reduced while backward continues. The ranks may
// therefore produce their gradients in different orders, and the order of reduction is the same on
// all. synchronize() ends the last round and waits. No thread runs in the background, and hooks
// never wait: a late rank delays the others only in synchronize(). With equal gradients in equal
// orders the results have the same bits in every run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/unused.h"

namespace lockstep::inline v0 {

// How the ranks' gradients are combined.
enum class GradientOp : uint8_t {
  kAverage,
  kSum,
  kAdasum,  // for an optimizer's steps: DistributedOptimizer only
};

// The type in which gradients longer than 16 bits travel. They are added in float32 and rounded
// once more.
enum class Compression : uint8_t { kNone, kFloat16, kBFloat16 };

// The options of DistributedGradients and DistributedOptimizer.
struct DistributedGradientsOptions {
  GradientOp op = GradientOp::kAverage;          // of the gradients
  Compression compression = Compression::kNone;  // while they travel
  // Gradients of this many backwards add up on this rank before they are reduced. The result is
  // their sum: divide the loss for their mean.
  int64_t backward_passes_per_step = 1;
  // kAverage only: of the division by the number of ranks, this factor is applied before the
  // addition and the rest after, for gradients whose sum would overflow. Above 0.
  double gradient_predivide_factor = 1;
  int64_t fusion_threshold = int64_t{64} << 20;  // bytes after which a fused buffer is full
  // More rounds: an earlier start and more small messages. 1: everything in synchronize().
  int rounds = 8;
  bool sparse_as_dense = false;    // false: a sparse gradient is InvalidArgument
  Unused unused = Unused::kLeave;  // for parameters that no rank used
};

// A parameter without a gradient on some, but not all, ranks.
struct MissingGradient {
  std::string name;
  std::vector<int> ranks;  // ranks without one; they contributed its former gradient, or zero
};

// Not copyable, not movable. Hooks have no effect once the object is gone.
// Thread-safety: one thread at a time.
class LOCKSTEP_API DistributedGradients {
 public:
  // Compares names, shapes and dtypes among the ranks, and makes a communicator and memory of its
  // own, one more copy of the gradients. Parameters that require no gradient are left out; values
  // are not broadcast (broadcast.h). A process set is a communicator of its ranks:
  // comm.subgroup({0, 2}).
  // Collective: all ranks call it.
  // Throws: Mismatch that names the first difference; InvalidArgument for options out of range, a
  // parameter that is given twice, and where none requires a gradient.
  DistributedGradients(const NamedTensors& parameters, Communicator comm,
                       DistributedGradientsOptions options = {});
  ~DistributedGradients();
  DistributedGradients(const DistributedGradients&) = delete;
  DistributedGradients& operator=(const DistributedGradients&) = delete;

  // All ranks call it once their backwards are done: gradients are then the reduction of all
  // ranks'. Does nothing if they are reduced and none has arrived since. Also ends a step whose
  // backward has thrown on this rank, with the gradients that exist.
  // Collective: all ranks call it.
  // Throws: Mismatch on all ranks, naming them, if some have called backward less often than others
  // (for example, skipped it); InvalidArgument (Unused::kThrow, or a parameter that was unfrozen or
  // converted to another type or device since); the communicator's errors.
  void synchronize();

  // Whether a gradient has arrived since the last synchronize().
  bool pending() const;
  // The memory in which gradients travel; 0 for one rank.
  int64_t buffer_bytes() const;
  // The optimizer has taken its step: the next synchronize() belongs to the next one.
  void stepped();
  // For the last synchronize(), in the order of the parameters.
  const std::vector<MissingGradient>& missing() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0
