// lockstep compare --scaling: the same training on several numbers of ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/bench/rows.h"
#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// --scaling 1,2,3,4 is tutorial 000's experiment: it trains the same model on each number of ranks,
// and shows how the time falls. Exit codes are those of bench::run_programs().
int compare_scaling(const Arguments& arguments);

// Sets speed_up and efficiency of the rows, relative to the first one, whose speed-up per rank
// counts as 1. A row of one size has nproc, seconds (from the start of the processes to their end),
// samples_per_s, loss and accuracy.
// Requires: seconds above 0.
void compare_to_first_size(std::vector<bench::Row>& rows);
std::string scaling_table(const std::vector<bench::Row>& rows);
std::string scaling_svg(const std::vector<bench::Row>& rows);

}  // namespace lockstep::inline v0::engine
