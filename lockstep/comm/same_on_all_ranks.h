// Are all ranks about to train the same model?
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// flat's NamedTensors, which this room is below of.
using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// Compares names, order, shapes, dtypes and requires_grad of `tensors` among all ranks. Throws
// Mismatch, on all ranks alike, that names the first difference and the ranks on each side.
// Collective.
void check_same_on_all_ranks(Communicator& comm, const NamedTensorList& tensors);

// Compares the tensors' values, bit for bit (equal NaN are equal), by 8 bytes a rank; names and shapes
// must agree already. Throws Mismatch, on all ranks alike, that names the first tensor that differs and
// the ranks in the minority with their hosts; the communicator stays as it was. `when`: for the message,
// "step 300". Reads every byte once, some 10 GB a second. Collective.
void check_equal_values(Communicator& comm, const NamedTensorList& tensors,
                        const std::string& when = "");

// Copies rank 0's values into everybody's. Collective.
void broadcast_tensors(Communicator& comm, const NamedTensorList& tensors, int root = 0);

}  // namespace lockstep
