// Adds the place in the pipeline to the communicator's errors.
#pragma once

#include <functional>
#include <string>

#include "lockstep/plan/pipeline_check.h"

namespace lockstep::inline v0::internal {

// "the rows of micro-batch 3", "the gradient of micro-batch 3".
std::string name_of(const PipelineMessage& message);

// Runs `call`, and rethrows its Timeout, PeerLost and Mismatch, of the same type and with the same
// rank, as "<place>: <text>". `call` must contain only calls of the communicator, since a chunk's
// exceptions stay unchanged.
void at_place(const std::function<std::string()>& place, const std::function<void()>& call);

}  // namespace lockstep::inline v0::internal
