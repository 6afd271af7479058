// average_gradients: data parallelism by hand, as PyTorch's "Writing Distributed Applications"
// teaches it.
#pragma once

#include "lockstep/comm/algorithms/ring.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// The options of average_gradients().
struct AverageOptions {
  algorithms::AllReduce algorithm = algorithms::AllReduce::kEngine;  // of each all-reduce
};

// Replaces every parameter's gradient by the average over the ranks, with one all-reduce per
// parameter, after backward. A parameter with a gradient on some ranks only counts as zero on the
// others and has one on all ranks afterwards; one without a gradient on any rank is unchanged.
// Collective: all ranks call it.
// Throws: the communicator's errors; the gradients are then unspecified.
LOCKSTEP_API void average_gradients(const NamedTensors& parameters, Communicator& comm,
                                    AverageOptions options = {},
                                    Communicator::Site site = Communicator::Site::current());

// The same for a module, or a holder of one.
template <ModuleOrHolder M>
void average_gradients(M& module, Communicator& comm, AverageOptions options = {},
                       Communicator::Site site = Communicator::Site::current()) {
  average_gradients(parameters_of(module), comm, options, site);
}

}  // namespace lockstep::inline v0
