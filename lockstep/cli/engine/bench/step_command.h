// lockstep bench step
#pragma once

#include <string>
#include <vector>

#include "lockstep/bench/step.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

struct StepArguments {
  bench::StepOptions measured;
  std::string json;
  std::string svg;
  std::vector<int> copies;  // of the mesh
  std::string turns;        // a process of a contender: its lines to the parent
};
// Throws HelpShown, InvalidArgument.
StepArguments parse_step_arguments(const Arguments& arguments);

// Measures whole training steps, or is a process of a contender.
int bench_step(const Arguments& arguments);

}  // namespace lockstep::engine
