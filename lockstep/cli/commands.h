// The commands of `lockstep`. This program has no libtorch in it: `run` must start in milliseconds.
// The others live in programs of their own, into which this one turns.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Command {
  const char* name;
  const char* summary;
  // Whose command it is: of lockstep-engine, which trains and uses models; of lockstep-tools, which
  // measures and compares, and which scripts/quickstart does not build; nullptr: of this program.
  const char* program = nullptr;
};
const std::vector<Command>& commands();

// What `lockstep --help` prints.
std::string help_text();

// Runs the command line (without argv[0]); returns the exit code. Errors are one line on stderr.
int main_of_lockstep(const std::vector<std::string>& arguments);

// Where another program is: ../libexec/lockstep/NAME from the folder of `lockstep`.
std::filesystem::path program_path(const std::filesystem::path& lockstep, const std::string& name);

// What to do for who misses it there: a command line where `lockstep` stands in a build folder.
std::string how_to_build(const std::filesystem::path& lockstep, const std::string& name);

}  // namespace lockstep::cli
