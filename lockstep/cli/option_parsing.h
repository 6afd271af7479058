// Parsing with CLI11, the errors of a wrong command line (one line that names the option, the
// likely meaning of a mistyped one, and its values), and the text of --help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::inline v0::cli {

// Parses the words after the command's name, in their order. Long options may be written with '_'
// for '-', and shortened where that is unambiguous: the rule of torchrun, and of every command. A
// command that passes options on (CLI11's allow_extras) wants its own in full, because it does not
// know the others. An option that is given has a value; an empty one is refused, except for texts
// (type name "TEXT").
// Throws: CLI::CallForHelp where CLI11 does, UsageError otherwise.
void parse_options(CLI::App& app, const std::vector<std::string>& words);

// Prints to stdout what --help asks for: the text, or the table (option_table.h).
void show_help(const CLI::App& app);

// "lockstep train RECIPE [OPTIONS]".
std::string usage_of(const CLI::App& app);
// An option's names as they are typed, short ones first; a positional's in capitals.
std::vector<std::string> option_spellings(const CLI::Option& option);
// The values of an option, without the text of its validators: "N", "FILE", "a|b|c"; empty for a
// flag.
std::string value_name(const CLI::Option& option);

// The text of --help, in lines of at most `width` columns: how the command is called, what it does,
// its options by their groups, each with its value and whether it is required, the footer, and the
// example.
inline constexpr size_t kHelpWidth = 100;
std::string help_of(const CLI::App& app, size_t width = kHelpWidth);
// The width for this terminal.
size_t help_width();
// Adds command lines that work to the end of the help, behind the footer.
void add_example(CLI::App& app, const std::vector<std::string>& lines);

}  // namespace lockstep::inline v0::cli
