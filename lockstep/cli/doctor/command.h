// `lockstep doctor`: looks at this host, at the way to another one, at the traces of a job that
// failed, or at one that runs.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Returns the exit code: 0 when nothing is wrong, else 1.
// Throws: UsageError, DataError, InvalidArgument.
int doctor_command(const std::vector<std::string>& arguments);

std::string doctor_help();

}  // namespace lockstep::cli
