// Runs parts, each in a process of its own with a time of its own.
#pragma once

#include "lockstep/gpu_check/options.h"

namespace lockstep::inline v0::gpu_check {

// Of the program's user: every part, the table on stdout, the rows in a file. The exit code: 0, or 1
// where a row says "failed". Throws InvalidArgument for parts that there are none of, and for a file
// that cannot be written.
int run_all(const Options& options);

// The one in options.part.
int run_part(const Options& options);

// This program's own file.
std::string own_program();

}  // namespace lockstep::inline v0::gpu_check
