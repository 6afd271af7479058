// lockstep bench step
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

struct StepArguments {
  std::string model = "simple-cnn";
  std::vector<std::string> strategies;
  int nproc = 2;
  int64_t batch = 0;  // samples of a process's step
  int threads = 1;    // of each process
  std::string optimizer = "fused";
  int rounds = 7;
  double turn_ms = 1500;
  std::string python = "python3";
  std::string json;
  std::string svg;
  std::string turns;  // a process of a contender: its lines to the parent
};
// Throws HelpShown, InvalidArgument.
StepArguments parse_step_arguments(const Arguments& arguments);

// Measures whole training steps: each contender is a job of its own, and all take turns.
int bench_step(const Arguments& arguments);

}  // namespace lockstep::engine
