#include "lockstep/cli/engine/compare/command.h"

#include <algorithm>

#include "lockstep/cli/engine/compare/parallelism.h"
#include "lockstep/cli/engine/compare/programs.h"
#include "lockstep/cli/engine/compare/scaling.h"
#include "lockstep/cli/engine/compare/strategies.h"

namespace lockstep::inline v0::engine {

int compare_command(const Arguments& arguments) {
  const Arguments spelled = with_dashes(arguments);
  const auto gives = [&](const std::string& option) {
    return std::any_of(spelled.begin(), spelled.end(), [&](const std::string& argument) {
      return argument == option || argument.starts_with(option + "=");
    });
  };
  if (gives("--programs") || gives("--methods")) return compare_programs(arguments);
  if (gives("--parallelism")) return compare_parallelism(arguments);
  const bool names_recipe = !arguments.empty() && !arguments[0].starts_with("-");
  if (gives("--scaling") && !gives("--strategies") && !names_recipe)
    return compare_scaling(arguments);
  return compare_strategies(arguments);
}

}  // namespace lockstep::inline v0::engine
