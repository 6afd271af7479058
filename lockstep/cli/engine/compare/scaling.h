// lockstep compare --scaling: the same training on several numbers of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// --scaling 1,2,3,4: tutorial 000's experiment. Trains the same model on each number of ranks, and
// shows how time falls.
int compare_scaling(const Arguments& arguments);

// One size's run.
struct ScalingRow {
  int64_t nproc = 1;
  double seconds = 0;  // from the start of the processes to their end
  double samples_per_s = 0;
  double loss = 0;
  double accuracy = 0;
};

// Relative to the first row, whose speed-up per rank counts as 1.
double speed_up(const std::vector<ScalingRow>& rows, size_t row);
double efficiency(const std::vector<ScalingRow>& rows, size_t row);
std::string scaling_table(const std::vector<ScalingRow>& rows);
std::string scaling_svg(const std::vector<ScalingRow>& rows);
// "1,2,4" as numbers. Throws InvalidArgument.
std::vector<int64_t> parse_sizes(const std::string& text);

}  // namespace lockstep::engine
