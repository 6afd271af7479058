// lockstep compare --programs DIR: programs that train the same thing. DIR/programs.json names them
// in their order, such as the nine of tutorial 003 in examples/text_classification. The arguments
// of a program, which programs.cpp writes:
//
//   --data PATH --model mini|base|DIR --output DIR --json FILE   always
//   --vocab FILE                                                 where there is one
//   --recipe default|tutorial --max-steps N --epochs N --seed N  where compare was given them
//   --batch-size N --max-length N --remove-spaces                the same
//   --padding max_length|longest|packed                          the same; --pack: packed
//   --amp bfloat16|float16                                       the same, if the program takes it
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

namespace lockstep::inline v0::engine {

int compare_programs(const Arguments& arguments);

// An object of programs.json: {"name": "distributed", "tutorial": "multi-gpu-distributed-cls",
// "ranks": true}.
struct ComparedProgram {
  std::string name;      // the method's, and its file's
  std::string tutorial;  // a tutorial's name for it; may be empty
  // "ranks": the program is one rank, and `lockstep run` starts it on all of them; otherwise it is
  // started once.
  bool on_ranks = false;
  bool takes_nproc = false;  // "nproc": it makes ranks or devices, and takes their number
  bool takes_amp = false;    // "amp": it computes in a lower precision, and takes its name
};
// Throws: DataError that names `source`.
std::vector<ComparedProgram> parse_programs(const std::string& text, const std::string& source);
// Parses "all", or names with commas between them, in the order of `all`.
// Throws: InvalidArgument.
std::vector<ComparedProgram> choose_programs(const std::vector<ComparedProgram>& all,
                                             const std::string& names);

struct ProgramsArguments {
  CompareOptions common;
  std::string folder;            // the programs'
  std::string methods = "all";   // as choose_programs() takes it
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  std::string data;   // "": the built-in sentences
  std::string vocab;  // "": not given, like the texts below
  std::string model = "mini";
  std::string recipe;  // "": the default one
  std::string amp;
  Arguments passed;  // goes to every program as it stands, such as {"--epochs", "1"}
};
// Reads the arguments alone.
// Throws: HelpShown, InvalidArgument.
ProgramsArguments parse_programs_arguments(const Arguments& arguments);

// Plans the programs on --nproc ranks, then those that have ranks on the other numbers of
// --scaling. `lockstep` is the command that starts ranks. Pure.
std::vector<ComparedJob> plan_programs(const std::vector<ComparedProgram>& programs,
                                       const ProgramsArguments& arguments,
                                       const std::string& lockstep);

}  // namespace lockstep::inline v0::engine
