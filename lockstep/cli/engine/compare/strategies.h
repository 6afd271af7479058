// lockstep compare [RECIPE] [--strategies LIST]: one recipe, trained by several strategies, side by
// side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/comparison_run.h"

namespace lockstep::engine {

// A row: "single" (one rank), a strategy's name, either with "-bf16" (autocast).
struct ComparedWay {
  std::string name;
  std::string strategy;  // of strategy_names()
  bool alone = false;    // on one rank, whatever --nproc says
  bool bf16 = false;
};
// Names with commas, each once, in their order.
// Throws: InvalidArgument that names the choices.
std::vector<ComparedWay> parse_ways(const std::string& text);

struct StrategiesArguments {
  CompareOptions common;
  std::string recipe = "text";
  std::vector<ComparedWay> ways;
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  std::string mesh;  // of the ways whose ranks share copies of the parameters, on nproc ranks
  std::string data;  // "": the recipe's built-in set
  Arguments train;   // what goes to every `lockstep train`
};
// Looks at nothing but the arguments.
// Throws: HelpShown, InvalidArgument.
StrategiesArguments parse_strategies_arguments(const Arguments& arguments);

// Each way on its ranks, then those that are not alone on the other numbers of --scaling. `train`:
// the command `lockstep train`. Pure.
std::vector<ComparedJob> plan_strategies(const StrategiesArguments& arguments,
                                         const std::vector<std::string>& train);

// Exit codes: bench::run_programs().
int compare_strategies(const Arguments& arguments);

}  // namespace lockstep::engine
