// The commands of `lockstep`. This program has no libtorch in it, because `run` must start in
// milliseconds. The other commands live in programs of their own, which this one executes in its
// place.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline v0::cli {

struct Command {
  const char* name;
  const char* summary;
  // The program that has the command: lockstep-engine, which trains and uses models, or
  // lockstep-tools, which measures and compares, and which scripts/quickstart does not build.
  // nullptr: this program.
  const char* program = nullptr;
};
const std::vector<Command>& commands();

// The text of `lockstep --help`.
std::string help_text();

// Runs the command line (without argv[0]); returns the exit code. Errors are one line on stderr.
int main_of_lockstep(const std::vector<std::string>& arguments);

// The path of another program in a build tree: ../libexec/lockstep/NAME from the folder of
// `lockstep`. (Installed: libtorch_choice.h.)
std::filesystem::path program_path(const std::filesystem::path& lockstep, const std::string& name);

// The remedy where it is missing: a command line, if `lockstep` stands in a build folder.
std::string how_to_build(const std::filesystem::path& lockstep, const std::string& name);

}  // namespace lockstep::inline v0::cli
