// lockstep compare --programs DIR: programs that train the same thing, each one method, such as the nine of
// tutorial 003 in examples/text_classification or somebody's own under their names. What a program is
// given, here and nowhere else (programs.cpp writes it):
//
//   --data PATH --model mini|base|DIR --output DIR --json FILE     always
//   --vocab FILE                                                   where there is one
//   --recipe default|tutorial --max-steps N --epochs N --seed N
//   --batch-size N --max-length N                                  where compare was given them
//   --padding max_length|longest|packed                            likewise; --pack: packed
//   --remove-spaces                                                likewise
//   --amp bfloat16|float16     likewise: distributed_amp, zero_engine, accelerator, trainer
//   --nproc N                  data_parallel (replicas) and distributed_spawn (ranks)
//
// The environment has OMP_NUM_THREADS, threads a rank. The program writes its result
// (report/run_result.h) to FILE; comparison_run.h says how it ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/comparison_run.h"
#include "lockstep/cli/engine/compare/methods.h"

namespace lockstep::engine {

// Exit codes: 0; 2 for bad input, found before anything starts, or by the first program; 1 if a method
// failed, and the others have run.
int compare_programs(const Arguments& arguments);

struct MethodsArguments {
  std::vector<TrainingMethod> methods;
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  int64_t threads = 0;    // of a rank; 0: processors / ranks
  std::string data;       // "": the built-in sentences
  bool built_in = false;  // `data` is where they are
  std::string vocab;      // "": not given, so with all texts below
  std::string model = "mini";
  std::string output = "runs/compare";
  std::string json;
  std::string programs;    // the folder of the methods' programs
  double timeout = 86400;  // seconds that a method may take
  std::string recipe;      // "": the default one
  std::string amp;         // for the methods that take it
  bool remove_spaces = false;
  // Options that go to every program as they stand, such as {"--epochs", "1"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Throws HelpShown, InvalidArgument. Looks at nothing but the arguments.
MethodsArguments parse_methods_arguments(const Arguments& arguments);

// The methods on --nproc ranks, then those that have ranks on the other numbers of --scaling. Pure.
// `lockstep`: the command, which starts ranks.
std::vector<ComparedJob> plan_programs(const MethodsArguments& arguments,
                                       const std::filesystem::path& lockstep);

}  // namespace lockstep::engine
