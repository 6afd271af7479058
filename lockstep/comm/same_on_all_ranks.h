// Checks that all ranks are about to train the same model.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The same type as flat::NamedTensors, repeated because comm/ must not depend on flat/.
using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// Compares names, order, shapes, dtypes and requires_grad of `tensors` among all ranks.
// Collective: all ranks call it.
// Throws: Mismatch, on all ranks alike, that names the first difference and the ranks on each side.
LOCKSTEP_API void check_same_on_all_ranks(Communicator& comm, const NamedTensorList& tensors);

// Compares the tensors' values bit for bit (equal NaN are equal), by exchanging 8 bytes per rank.
// Names and shapes must agree already. `when`: "step 300", for the message. It leaves the
// communicator unbroken.
// Collective: all ranks call it.
// Throws: Mismatch, on all ranks alike, that names the first tensor that differs and the ranks in
// the minority with their hosts.
// Cost: reads every byte once, at some 10 GB a second.
LOCKSTEP_API void check_equal_values(Communicator& comm, const NamedTensorList& tensors,
                                     const std::string& when = "");

// Copies the root's values into the tensors of every rank.
// Collective: all ranks call it.
LOCKSTEP_API void broadcast_tensors(Communicator& comm, const NamedTensorList& tensors,
                                    int root = 0);

}  // namespace lockstep::inline v0
