// lockstep bench rpc
#pragma once

#include <string>

#include "lockstep/bench/rpc.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

struct RpcArguments {
  bench::RpcOptions measured;
  std::string json;
  std::string svg;
};
// Throws HelpShown, InvalidArgument.
RpcArguments parse_rpc_arguments(const Arguments& arguments);

// Measures remote calls, or is a process of a contender.
int bench_rpc(const Arguments& arguments);

}  // namespace lockstep::engine
