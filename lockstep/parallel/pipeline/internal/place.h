// What a communicator throws in a pipeline, with the place where it came.
#pragma once

#include <functional>
#include <string>

#include "lockstep/plan/pipeline_check.h"

namespace lockstep::internal {

// "the rows of micro-batch 3", "the gradient of micro-batch 3".
std::string name_of(const PipelineMessage& message);

// Runs `call`, and throws its Timeout, PeerLost and Mismatch anew, of the same type and with the same rank, as
// "<place>: <what it said>". Of `call` the communicator's own calls alone: what a chunk throws is its own.
void at_place(const std::function<std::string()>& place, const std::function<void()>& call);

}  // namespace lockstep::internal
