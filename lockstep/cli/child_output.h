// Reads the output of a child process with a deadline.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::cli {

// All that can be read from `fd`, up to its end. Throws: Timeout.
std::string read_all(int fd, Deadline deadline);

enum class PythonErrors { kShown, kHidden };

// The first line that `python -c program` prints; "" where it cannot be started, fails or does not
// end within `seconds`. Files of the current folder are not its modules.
std::string line_of_python(const std::filesystem::path& python, const std::string& program,
                           double seconds, PythonErrors errors);

}  // namespace lockstep::inline v0::cli
