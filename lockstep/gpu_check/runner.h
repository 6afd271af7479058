// Runs parts, each in a process of its own with a time of its own.
#pragma once

#include "lockstep/gpu_check/options.h"

namespace lockstep::inline v0::gpu_check {

// Runs the parts that the program's user asks for, with the table on stdout and the rows in a file.
// Returns the exit code: 0, or 1 where a row says "failed". Throws InvalidArgument for parts that
// there are none of, for a file that cannot be written, and where no device is visible.
int run_all(const Options& options);

// Runs the one in options.part.
int run_part(const Options& options);

// This program's own file.
std::string own_program();

}  // namespace lockstep::inline v0::gpu_check
