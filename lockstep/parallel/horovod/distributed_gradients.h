// DistributedGradients: Horovod's way to average gradients (Sergeev and Del Balso,
// arXiv:1802.05799), for any optimizer. DistributedOptimizer (distributed_optimizer.h) is this and
// an optimizer in one.
//
// Hooks on the parameters notice each gradient as backward produces it. At up to `rounds` points of
// a backward the ranks tell each other, a bit a parameter, which gradients they have; those that
// all ranks have are copied into fused buffers and reduced while backward goes on. So the ranks may
// produce their gradients in different orders, and the order of reduction is the same on all.
// synchronize() ends the last round and waits. No thread runs in the background, and hooks never
// wait: a rank that is late delays the others in synchronize() only. With equal gradients in equal
// orders the results have the same bits in every run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/unused.h"

namespace lockstep {

enum class GradientOp : uint8_t {
  kAverage,
  kSum,
  kAdasum,  // of an optimizer's steps: DistributedOptimizer only
};

// What gradients longer than 16 bits travel as. They are added in float32 and rounded once more.
enum class Compression : uint8_t { kNone, kFloat16, kBFloat16 };

struct DistributedGradientsOptions {
  GradientOp op = GradientOp::kAverage;
  Compression compression = Compression::kNone;
  // Gradients of so many backwards add up on this rank before they are reduced. Their sum: divide
  // the loss for their mean.
  int64_t backward_passes_per_step = 1;
  // kAverage only: of the division by the number of ranks, this factor is done before adding up and
  // the rest after, for gradients whose sum would overflow. Above 0.
  double gradient_predivide_factor = 1;
  int64_t fusion_threshold = int64_t{64} << 20;  // bytes after which a fused buffer is full
  int rounds = 8;  // more: an earlier start and more small messages. 1: all in synchronize()
  bool sparse_as_dense = false;    // false: a sparse gradient is InvalidArgument
  Unused unused = Unused::kLeave;  // parameters that no rank used
};

// A parameter that got no gradient on some ranks, though on others.
struct MissingGradient {
  std::string name;
  std::vector<int> ranks;  // that had none, and contributed what its gradient held, or zero
};

// Not copyable, not movable. One thread at a time. Hooks do nothing once the object is gone.
class DistributedGradients {
 public:
  // Collective: compares names, shapes and dtypes among the ranks (Mismatch names the first
  // difference), and makes a communicator and memory of its own, one more copy of the gradients.
  // Parameters that take no gradient are left out; values are not broadcast (broadcast.h). A
  // process set is a communicator of its ranks: comm.subgroup({0, 2}). Throws InvalidArgument for
  // options out of range, a parameter that is given twice, and where none takes a gradient.
  DistributedGradients(const NamedTensors& parameters, Communicator comm,
                       DistributedGradientsOptions options = {});
  ~DistributedGradients();
  DistributedGradients(const DistributedGradients&) = delete;
  DistributedGradients& operator=(const DistributedGradients&) = delete;

  // All ranks, once their backwards are done: gradients are then what all ranks' are together. Does
  // nothing if they are already and none has arrived since. Also ends a step whose backward has
  // thrown on this rank, with what there is.
  //
  // Throws Mismatch on all ranks, naming them, if some have called backward less often than others
  // (skipped it, say); InvalidArgument (Unused::kThrow, or a parameter that was unfrozen or converted to
  // another type or device since this was made); what the communicator throws.
  void synchronize();

  // Since the last synchronize(): has a gradient arrived?
  bool pending() const;
  // The optimizer has taken its step: the next synchronize() is of the next one.
  void stepped();
  // Of the last synchronize(), in the order of the parameters.
  const std::vector<MissingGradient>& missing() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
