// The commands of `lockstep`. This program has no libtorch in it: `run` must start in milliseconds.
// The others live in a second program, lockstep-engine, which this one turns into.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Command {
  const char* name;
  const char* summary;
};
const std::vector<Command>& commands();

// What `lockstep --help` prints.
std::string help_text();

// Runs the command line (without argv[0]); returns the exit code. Errors are one line on stderr.
int main_of_lockstep(const std::vector<std::string>& arguments);

// Where the other commands are: ../libexec/lockstep/lockstep-engine from the folder of `program`.
std::filesystem::path engine_path(const std::filesystem::path& program);

}  // namespace lockstep::cli
