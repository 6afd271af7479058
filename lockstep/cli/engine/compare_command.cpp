#include "lockstep/cli/engine/compare_command.h"

#include <algorithm>

#include "lockstep/cli/engine/compare_methods.h"
#include "lockstep/cli/engine/compare_scaling.h"

namespace lockstep::engine {
namespace {

bool gives(const Arguments& arguments, const std::string& option) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

}  // namespace

int compare_command(const Arguments& arguments) {
  if (gives(arguments, "--scaling") && !gives(arguments, "--methods"))
    return compare_scaling(arguments);
  return compare_methods(arguments);
}

}  // namespace lockstep::engine
