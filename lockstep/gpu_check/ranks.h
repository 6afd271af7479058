// Jobs: what ranks do together, as processes that execute this program anew.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/gpu_check/options.h"
#include "lockstep/gpu_check/parts.h"

namespace lockstep::inline v0::gpu_check {

// An engine and what its tensors are: "nccl", "peer", or one of the host that carries a device's
// through pinned memory.
struct JobSpec {
  std::string job;     // of jobs()
  std::string engine;  // InitOptions::backend
  int size = 2;
  std::string name = {};  // as tables have it; "": by the engine and the number of ranks
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);   // of the ranks' waits
  std::chrono::nanoseconds deadline = std::chrono::seconds(30);  // of the whole
  std::map<int, int> ends = {};  // how ranks are to end: as in expect_lone_ranks()
  std::map<std::string, std::string> variables = {};
};

// The work of each rank. All rows of rank 0 count, and of other ranks those that say "failed".
using Job = void (*)(Communicator& comm, const Options& options, const Rows& rows);
// By name: all that on_ranks() can start.
const std::map<std::string, Job>& jobs();

// How tables name it: "staged:shm, 2 ranks".
std::string title(const JobSpec& spec);

// Starts the ranks and hands their rows on, with one for each that ended otherwise than it was to.
// False: init() refuses the engine, which is a row that says why.
bool on_ranks(const Options& options, const Rows& rows, const JobSpec& spec);

// A rank of a job (options.job): does not return where it is one.
int run_rank(const Options& options);

// Engines to look at, where options.ranks ranks share the devices that there are: peer and staged,
// and nccl with as many ranks as devices.
std::vector<JobSpec> specs(const Options& options, const std::string& job);

}  // namespace lockstep::inline v0::gpu_check
