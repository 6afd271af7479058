// Lockstep's own contender of `lockstep bench rpc`.
#pragma once

#include "lockstep/bench/rpc_work.h"

namespace lockstep::inline v0::bench {

// Two agents that find each other by a store of the server's. Variant "quick" registers the
// function that adds to run where its call was received (rpc::FunctionOptions), variant "" on a
// worker.
// Requires: the job's secret in the environment of both.
RpcSides lockstep_sides();

}  // namespace lockstep::inline v0::bench
