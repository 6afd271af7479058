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
  bool of_methods = !gives(arguments, "--scaling");
  for (const char* own : {"--methods", "--vocab", "--pack", "--amp", "--programs"})
    of_methods = of_methods || gives(arguments, own);
  return of_methods ? compare_methods(arguments) : compare_scaling(arguments);
}

}  // namespace lockstep::engine
