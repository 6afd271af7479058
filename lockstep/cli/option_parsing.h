// Parsing with CLI11, and what is said of a wrong command line: one line that names the option, the
// likely meaning of a mistyped one, and what it takes.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

// Parses the words after the command's name, in their order. Throws CLI::CallForHelp where CLI11
// does, UsageError otherwise.
void parse_options(CLI::App& app, const std::vector<std::string>& words);

}  // namespace lockstep::cli
