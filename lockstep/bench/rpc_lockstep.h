// Lockstep's own contender of `lockstep bench rpc`.
#pragma once

#include "lockstep/bench/rpc_work.h"

namespace lockstep::bench {

// Two agents that find each other by a store of the server's. Both need the job's secret in the
// environment. Variant "quick": the function that adds is registered to run where its call was
// received (rpc::FunctionOptions); "": on a worker.
RpcSides lockstep_sides();

}  // namespace lockstep::bench
