#include "lockstep/replicas/broadcast_parameters.h"

#include <vector>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void broadcast_parameters(const NamedTensors& tensors, Communicator& comm, int root) {
  check_same_on_all_ranks(comm, tensors);
  if (tensors.empty()) {
    throw InvalidArgument(
        "broadcast_parameters: there are no parameters and no buffers; register_parameter() makes "
        "a module's known, and torch.jit.freeze() has turned those of a TorchScript module into "
        "constants");
  }
  std::vector<at::Tensor> values;
  for (const auto& entry : tensors) values.push_back(entry.second.detach());
  broadcast_coalesced(comm, values, root);
}

}  // namespace lockstep::inline v0
