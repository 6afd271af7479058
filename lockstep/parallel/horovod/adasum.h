// Adasum: adds vectors of several ranks so that their common component counts once and orthogonal
// components add up, for large batches without another learning rate. Maleki et al., "Scaling
// Distributed Training with Adaptive Summation", arXiv:2006.02924.
//
//   adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// More ranks are combined in pairs: adasum(adasum(g0, g1), adasum(g2, g3)). A zero vector has no
// effect: adasum(0, b) = b.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Replaces each tensor by the Adasum of all ranks' tensors, each tensor (a layer) separately.
// Vectors are halved and exchanged with partners at distances 1, 2, 4, ... It computes on the CPU,
// float16 and bfloat16 in float32, dot products in float64; every rank gets the same bits. It
// blocks, and uses messages of tag kAdasumTag.
// Collective: all ranks, with the same shapes and dtypes (Mismatch otherwise).
// Throws: InvalidArgument for integers, and unless the number of ranks is a power of two: use a
// process set (subgroup()) or an average then.
// Cost: bytes as in an all_reduce, and three float64 numbers per tensor.
inline constexpr int kAdasumTag = 44'001;
LOCKSTEP_API void adasum_all_reduce(Communicator& comm, std::span<const at::Tensor> tensors,
                                    Communicator::Site site = Communicator::Site::current());

// Adasum of an optimizer's steps, as in Horovod and in the paper for optimizers with state: each
// rank steps with its own gradients, and the resulting differences of the parameters are combined.
// For plain SGD that is Adasum of the gradients.
class LOCKSTEP_API AdasumStep {
 public:
  AdasumStep(Communicator comm, std::vector<at::Tensor> parameters);
  // Called around a step.
  // Collective: all ranks call after().
  void before();
  void after();

 private:
  Communicator comm_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> starts_;
};

}  // namespace lockstep::inline v0
