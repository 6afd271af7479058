// lockstep compare --methods: several ways to train the same thing, side by side.
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Runs the methods' programs one after another, reads their results, and writes comparison.json,
// comparison.md and comparison.html, after each of them anew. Exit codes: 0; 2 for bad input, found
// before anything starts, or by the first program; 1 if a method failed, and the others have run.
int compare_methods(const Arguments& arguments);

}  // namespace lockstep::engine
