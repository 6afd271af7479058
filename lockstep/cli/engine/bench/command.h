// lockstep bench KIND
#pragma once

#include <string>

#include "lockstep/bench/peers.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// KIND is collectives, step or rpc.
int bench_command(const Arguments& arguments);

// `bench step` and `bench rpc` measure, or are a process of a contender.
int bench_step(const Arguments& arguments);
int bench_rpc(const Arguments& arguments);

// Adds --peers and --python. The folder is the one beside this program, unless another is given.
void add_peers(CLI::App& app, bench::Peers& peers, const std::string& python_for);

}  // namespace lockstep::inline v0::engine
