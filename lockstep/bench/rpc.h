// What `lockstep bench rpc` measures: remote calls between two processes. Each contender is a
// server and a client of its own, and they take turns in alternating rounds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/bench/peers.h"
#include "lockstep/bench/rpc_figures.h"
#include "lockstep/bench/rpc_work.h"

namespace lockstep::bench {

const std::vector<std::string>& rpc_contenders();

struct RpcOptions {
  std::vector<std::string>
      contenders;  // of rpc_contenders(); the first is what others are compared with
  std::vector<RpcTask> tasks;
  int rounds = 7;
  Peers peers = {};
  // Between hosts: the server's numeric address, and the words before a command that runs it on the
  // server's host, or the client's. Empty: both run here.
  std::string listen = {};
  std::function<std::vector<std::string>(bool server)> prefix = {};
};

// Takes out the contenders that are not here, or not between hosts, and says why.
void leave_out_absent(RpcOptions& options);

// A row for each task and contender that can do it, in the order of both lists. `program`: the
// command `lockstep`; its `bench rpc` is what Lockstep's processes and the bounds' run.
// Throws: InvalidArgument if no contender is left, LaunchError, Timeout.
std::vector<Row> measure_rpc(const RpcOptions& options, const std::string& program);

// A process of a contender that needs no program of its own: its name, then what run_rpc_process()
// takes. The exit code.
int run_rpc_contender(const std::vector<std::string>& words);

}  // namespace lockstep::bench
