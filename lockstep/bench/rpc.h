// The measurements of `lockstep bench rpc`: remote calls between two processes. Each contender is a
// server and a client of its own, and they take turns in alternating rounds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/bench/peers.h"
#include "lockstep/bench/rpc_figures.h"
#include "lockstep/bench/rpc_work.h"

namespace lockstep::inline v0::bench {

const std::vector<std::string>& rpc_contenders();

struct RpcOptions {
  // Names of rpc_contenders(). The others are compared with the first.
  std::vector<std::string> contenders;
  std::vector<RpcTask> tasks;
  int rounds = 7;
  Peers peers = {};
  // Between hosts: the server's numeric address, and the words that a command begins with to run on
  // the server's or the client's host. Empty: both run on this host.
  std::string listen = {};
  std::function<std::vector<std::string>(bool server)> prefix = {};
};

// Removes the contenders that are not installed or do not run between hosts, and prints the reason.
void leave_out_absent(RpcOptions& options);

// Returns a row for each task and contender that can do it, in the order of both lists. `program`
// is the command `lockstep`; the processes of Lockstep and of the bounds run its `bench rpc`.
// Throws: InvalidArgument if no contender is left, LaunchError, Timeout.
std::vector<Row> measure_rpc(const RpcOptions& options, const std::string& program);

// Runs a process of a contender that needs no program of its own. `words`: its name, then the words
// of run_rpc_process(). Returns the exit code.
int run_rpc_contender(const std::vector<std::string>& words);

}  // namespace lockstep::inline v0::bench
