// torchrun's syntax of flags (Python's argparse), in front of CLI11: long flags with '-' or '_'
// that may be shortened where that is unambiguous; everything from the first word that is no flag
// belongs to the program. As under mpirun, a long flag may also begin with one '-'. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::cli {

struct Flag {
  std::string name;        // "--nproc-per-node"
  std::string short_name;  // "-r", "-np", or ""
  bool takes_value = true;
  // Another launcher's: it must be written in full, so that its names do not make the shortened
  // ones ambiguous.
  bool foreign = false;
  std::string means = {};  // the flag that this is another name of; "": it is none
  // For a flag that is known and not supported, what to use instead: the rest of a sentence that
  // begins with the flag. "": it is supported.
  std::string instead = {};
};

struct SplitCommandLine {
  std::vector<std::string> flags;    // in full: "--name" or "--name=value"
  std::vector<std::string> program;  // the program and its arguments; may be empty
  bool separated = false;            // "--" stands before the program
};

// Throws: UsageError for a flag that is unknown, ambiguous, not supported, or lacks its value.
SplitCommandLine split_command_line(const std::vector<std::string>& arguments,
                                    const std::vector<Flag>& known);

}  // namespace lockstep::inline v0::cli
