// torchrun's syntax of flags (Python's argparse), in front of CLI11: long flags with '-' or '_'
// that may be shortened where that is unambiguous; everything from the first word that is no flag
// belongs to the program. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::cli {

struct Flag {
  std::string name;        // "--nproc-per-node"
  std::string short_name;  // "-r", "-np", or ""
  bool takes_value = true;
};

struct SplitCommandLine {
  std::vector<std::string> flags;    // in full: "--name" or "--name=value"
  std::vector<std::string> program;  // the program and its arguments; may be empty
};

// Throws: UsageError for a flag that is unknown, ambiguous, or lacks its value.
SplitCommandLine split_command_line(const std::vector<std::string>& arguments,
                                    const std::vector<Flag>& known);

}  // namespace lockstep::inline v0::cli
