// `lockstep plan`: shows the effects of a pipeline's schedule before it runs.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

// Returns the exit code, 0.
// Throws: UsageError, InvalidArgument; SystemError where a file cannot be written.
int plan_command(const std::vector<std::string>& arguments);

std::string plan_help();
OptionTable plan_table();

}  // namespace lockstep::inline v0::cli
