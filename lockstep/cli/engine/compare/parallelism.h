// lockstep compare --parallelism: one language model divided among the ranks in every way, measured
// beside theory.
#pragma once

#include <string>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/options.h"
#include "lockstep/cli/engine/compare/parallelism_ways.h"

namespace lockstep::engine {

struct ParallelismArguments {
  Arguments given;  // all of them: what a run is called with too
  CompareOptions common{.output = "runs/parallelism", .timeout = 3600};
  DividedSettings settings = {};
  std::string way = {},
              record = {};  // inside: this process runs the way's ranks, or is one of them
};
// Looks at nothing but the arguments.
// Throws: HelpShown, InvalidArgument.
ParallelismArguments parse_parallelism_arguments(const Arguments& arguments);

// Each way twice, in two rounds, each run a job of processes of its own. Writes parallelism.json,
// .html and two pictures. Exit codes: bench::run_programs().
int compare_parallelism(const Arguments& arguments);

}  // namespace lockstep::engine
