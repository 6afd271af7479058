// `lockstep doctor`: examines this host, the way to another host, the traces of a job that failed,
// or a running job.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/option_table.h"

namespace lockstep::inline v0::cli {

// Returns the exit code: 0 when nothing is wrong, otherwise 1.
// Throws: UsageError, DataError, InvalidArgument.
int doctor_command(const std::vector<std::string>& arguments);

std::string doctor_help();
OptionTable doctor_table();

}  // namespace lockstep::inline v0::cli
