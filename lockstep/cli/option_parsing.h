// Parsing with CLI11, what is said of a wrong command line (one line that names the option, the
// likely meaning of a mistyped one, and what it takes), and what --help prints.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

// Parses the words after the command's name, in their order. An option that is given has a value:
// an empty one is refused, but of texts (type name "TEXT").
// Throws: CLI::CallForHelp where CLI11 does, UsageError otherwise.
void parse_options(CLI::App& app, const std::vector<std::string>& words);

// What --help prints, in lines of at most `width` columns: how the command is called, what it
// does, its options by their groups, each with what it takes and whether it is required, the
// footer, and the example.
inline constexpr size_t kHelpWidth = 100;
std::string help_of(const CLI::App& app, size_t width = kHelpWidth);
// For this terminal: no wider than it is.
size_t help_width();
// Command lines that do something, for the end of the help; behind the footer there is.
void add_example(CLI::App& app, const std::vector<std::string>& lines);

}  // namespace lockstep::cli
