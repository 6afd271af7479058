// `lockstep run`: from flags to a launch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/cli/run/flags.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/placement.h"

namespace lockstep::inline v0::cli {

// The facts about the machine that plan_run() needs.
struct MachineFacts {
  int cpus = 1;
  int gpus = 0;
  std::vector<launch::Processor> processors;  // those that this process may use
  std::string host_name;
  std::string python;  // the interpreter; "": there is none
  std::vector<InterfaceAddress> addresses;
  EnvLookup env = [](std::string_view) { return std::nullopt; };
};
MachineFacts machine_facts();

struct RunPlan {
  launch::LaunchOptions options;
  bool by_mpirun = false;
  std::vector<std::string> notes;  // lines to tell the user about flags that have no effect
};

// Plans the launch. Pure, except that it checks whether the program exists, and reads a host file.
// Throws: UsageError, InvalidArgument, LaunchError, one line each.
RunPlan plan_run(const RunFlags& flags, const MachineFacts& machine);

// Runs the whole command; returns the exit code.
int run_command(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline v0::cli
