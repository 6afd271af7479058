// broadcast_parameters: makes ranks start from the same values.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// Copies the root's values into the tensors of every rank; short ones travel together.
// Collective: all ranks call it.
// Throws: Mismatch that names the first difference if names, shapes or dtypes are not the same, and
// InvalidArgument, on all ranks, where there is no tensor; then nothing has changed.
LOCKSTEP_API void broadcast_parameters(const NamedTensors& tensors, Communicator& comm,
                                       int root = 0);
// The parameters and buffers of a model of any kind (flat/named_tensors.h): its whole state dict.
template <ModuleOrHolder M>
void broadcast_parameters(const M& model, Communicator& comm, int root = 0) {
  broadcast_parameters(state_of(model), comm, root);
}

}  // namespace lockstep::inline v0
