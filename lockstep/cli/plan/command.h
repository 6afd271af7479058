// `lockstep plan`: computes before a run what it will take, and shows a pipeline's schedule.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

// Returns the exit code: 0, or 1 where --fits was asked and the job does not fit.
// Throws: UsageError, InvalidArgument; SystemError where a file cannot be written.
int plan_command(const std::vector<std::string>& arguments);

// Whether the arguments ask for --calibrate, which the program with libtorch does. Throws UsageError.
bool plan_calibrates(const std::vector<std::string>& arguments);

std::string plan_help();
OptionTable plan_table();

}  // namespace lockstep::inline v0::cli
