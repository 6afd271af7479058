// lockstep compare --parallelism: one language model, divided among the ranks in every way and
// measured beside theory.
#pragma once

#include <string>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/options.h"
#include "lockstep/cli/engine/compare/parallelism_ways.h"

namespace lockstep::inline v0::engine {

struct ParallelismArguments {
  Arguments given;  // all of them, for the command of a run
  CompareOptions common{.output = "runs/parallelism", .timeout = 3600};
  DividedSettings settings = {};
  int rounds = 2;             // each way runs once in each
  std::string hardware = {};  // whose step times are planned; "": none
  bool calibrate = false;     // they are planned for this machine, which each round measures anew
  // Internal: this process starts the ranks of a way, or is one of them.
  std::string way = {}, record = {};
};
// Reads the arguments alone.
// Throws: HelpShown, InvalidArgument.
ParallelismArguments parse_parallelism_arguments(const Arguments& arguments);

// Runs each way once a round; each run is a job of its own. Writes parallelism.json,
// parallelism.html and two pictures. Exit codes are those of bench::run_programs().
int compare_parallelism(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
