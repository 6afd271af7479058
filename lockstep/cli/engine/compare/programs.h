// lockstep compare --programs DIR: programs that train the same thing. DIR/programs.json names them
// in their order, such as the nine of tutorial 003 in examples/text_classification. What a program
// is given, here and nowhere else (programs.cpp writes it):
//
//   --data PATH --model mini|base|DIR --output DIR --json FILE   always
//   --vocab FILE                                                 where there is one
//   --recipe default|tutorial --max-steps N --epochs N --seed N  where compare was given them
//   --batch-size N --max-length N --remove-spaces                likewise
//   --padding max_length|longest|packed                          likewise; --pack: packed
//   --amp bfloat16|float16                                       likewise, if the program takes it
//   --nproc N                                                    if it makes ranks of its own
//
// The environment has OMP_NUM_THREADS, threads a rank. The program writes its result
// (report/run_result.h) to FILE; bench/program_experiment.h says how it ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/comparison_run.h"

namespace lockstep::engine {

int compare_programs(const Arguments& arguments);

// An object of programs.json: {"name": "distributed", "tutorial": "multi-gpu-distributed-cls",
// "ranks": true}.
struct ComparedProgram {
  std::string name;      // of the method, and of its file
  std::string tutorial;  // what a tutorial calls it; may be empty
  // "ranks": the program is one rank, and `lockstep run` starts it on all of them; otherwise it is
  // started once.
  bool on_ranks = false;
  bool takes_nproc = false;  // "nproc": it has ranks or devices of its own, and is told how many
  bool takes_amp = false;    // "amp": it computes in a lower precision, and can be told which
};
// Throws: DataError that names `source`.
std::vector<ComparedProgram> parse_programs(const std::string& text, const std::string& source);
// "all", or names with commas between them, in the order of `all`.
// Throws: InvalidArgument.
std::vector<ComparedProgram> choose_programs(const std::vector<ComparedProgram>& all,
                                             const std::string& names);

struct ProgramsArguments {
  CompareOptions common;
  std::string folder;            // of the programs
  std::string methods = "all";   // as choose_programs() takes it
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  std::string data;   // "": the built-in sentences
  std::string vocab;  // "": not given, so with all texts below
  std::string model = "mini";
  std::string recipe;  // "": the default one
  std::string amp;
  Arguments passed;  // goes to every program as it stands, such as {"--epochs", "1"}
};
// Looks at nothing but the arguments.
// Throws: HelpShown, InvalidArgument.
ProgramsArguments parse_programs_arguments(const Arguments& arguments);

// The programs on --nproc ranks, then those that have ranks on the other numbers of --scaling.
// Pure. `lockstep`: the command, which starts ranks.
std::vector<ComparedJob> plan_programs(const std::vector<ComparedProgram>& programs,
                                       const ProgramsArguments& arguments,
                                       const std::string& lockstep);

}  // namespace lockstep::engine
