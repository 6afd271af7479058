// lockstep compare [RECIPE] [--strategies LIST]: one recipe, trained by several strategies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/comparison_run.h"

namespace lockstep::inline v0::engine {

// A row: "single" (one rank) or a strategy's name, either with "-bf16" (autocast).
struct ComparedWay {
  std::string name;
  std::string strategy;  // one of strategy_names()
  bool alone = false;    // on one rank, for every --nproc
  bool bf16 = false;
};
// Parses names with commas between them, each once, in their order.
// Throws: InvalidArgument that names the choices.
std::vector<ComparedWay> parse_ways(const std::string& text);

struct StrategiesArguments {
  CompareOptions common;
  std::string recipe = "text";
  std::vector<ComparedWay> ways;
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  std::string mesh;  // nproc ranks', for the ways whose ranks share copies of the parameters
  std::string data;  // "": the recipe's built-in set
  Arguments train;   // passed on to every `lockstep train`
};
// Reads the arguments alone.
// Throws: HelpShown, InvalidArgument.
StrategiesArguments parse_strategies_arguments(const Arguments& arguments);

// Plans each way on its ranks, then those that are not alone on the other numbers of --scaling.
// `train` is the command `lockstep train`. Pure.
std::vector<ComparedJob> plan_strategies(const StrategiesArguments& arguments,
                                         const std::vector<std::string>& train);

// Exit codes are those of bench::run_programs().
int compare_strategies(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
