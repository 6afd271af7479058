// spawn: several ranks from one program, without a launcher.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/launch_options.h"

namespace lockstep::inline v0::launch {

// How a child finds the call of spawn() for which it was started. By default it runs with the same
// arguments and counts calls.
struct SpawnPoint {
  std::string name = {};  // unique in the program; "": the number of the call
  // With a name: the child's arguments instead of this process's.
  std::vector<std::string> arguments = {};
  // The children are forks that call `fn` at once, in a copy of this process's memory: they need
  // not load libtorch anew (half a second of a processor each), and no exit handler runs. Only
  // while no other thread of this process can hold a lock that `fn` wants; libtorch starts threads
  // as it computes.
  bool by_fork = false;
};

// Runs `fn` in `nproc` processes that execute this program anew with the same arguments, unless
// they are forks (SpawnPoint::by_fork). A child runs main() up to this call, calls `fn`, and
// exits: with 0, or with 1 after printing the exception. The code before the call therefore runs in
// every process and must be cheap and free of side effects that must happen once. The n-th call of
// spawn in the parent is the n-th one in the child (others return at once there). In the child
// lockstep::init() gives the rank's communicator. `options` except command and nproc are as for
// launch(). In the parent it returns when all ranks have ended; a failure is in the result.
// Throws: LaunchError, InvalidArgument.
LOCKSTEP_API LaunchResult spawn(int nproc, const std::function<void()>& fn,
                                LaunchOptions options = {}, const SpawnPoint& point = {});

// True in a process that spawn() started.
LOCKSTEP_API bool in_spawned_child();

}  // namespace lockstep::inline v0::launch
