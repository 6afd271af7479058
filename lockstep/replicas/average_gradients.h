// average_gradients: data parallelism in a loop of the program's own, by one call after backward.
//
//   broadcast_parameters(model, comm);   // once (broadcast_parameters.h)
//   ...
//   optimizer.zero_grad();
//   loss(model, batch).backward();       // this rank's part of the data
//   average_gradients(model, comm);
//   optimizer.step();
//
// GradientAverager (parallel/ddp/gradient_averager.h) does the same while backward runs.
#pragma once

#include <cstdint>

#include "lockstep/comm/algorithms/ring.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

struct AverageOptions {
  algorithms::AllReduce algorithm = algorithms::AllReduce::kEngine;
  // Short gradients are packed into buckets of this size, of one dtype and device each; some
  // buckets are under way while the next is packed. Long ones are reduced where they lie. 0: one
  // all-reduce for each parameter, one after another, as PyTorch's "Writing Distributed
  // Applications" teaches it. The same on all ranks.
  int64_t bucket_bytes = int64_t{25} << 20;
};

// Replaces every parameter's gradient by the average over the ranks, after backward. A parameter
// with a gradient on some ranks only counts as zero on the others and has one on all ranks
// afterwards; one without a gradient on any rank is unchanged. So a rank without samples takes part
// by this call alone; the average is over all ranks all the same. Sparse gradients stay sparse,
// unless another rank has a dense one. The same input gives the same bits in every run, and the
// same on all ranks. Each parameter counts once, even where it has several names.
// Collective: all ranks call it with parameters of the same shapes and dtypes in the same order.
// Throws: Mismatch, on all ranks alike, that names the first parameter that is another one on some
// rank; InvalidArgument, on all ranks, where there is no parameter; then the gradients are
// unchanged. Otherwise the communicator's errors; the gradients are then unspecified.
LOCKSTEP_API void average_gradients(const NamedTensors& parameters, Communicator& comm,
                                    AverageOptions options = {},
                                    Communicator::Site site = Communicator::Site::current());

// The same for a model of any kind (flat/named_tensors.h).
template <ModuleOrHolder M>
void average_gradients(const M& model, Communicator& comm, AverageOptions options = {},
                       Communicator::Site site = Communicator::Site::current()) {
  average_gradients(parameters_of(model), comm, options, site);
}

}  // namespace lockstep::inline v0
