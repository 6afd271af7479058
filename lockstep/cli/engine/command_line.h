// The common part of the engine's commands: reading arguments, reporting errors, writing results.
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::inline v0::engine {

// Arguments after the command's name.
using Arguments = std::vector<std::string>;

// A program's main(): runs the command that argv[1] names; returns the exit code.
struct NamedCommand {
  const char* name;
  int (*run)(const Arguments&);
};
int run_one_of(const std::vector<NamedCommand>& commands, int argc, char** argv);

// Long options may be spelled with '_' for '-': "--batch_size=3" becomes "--batch-size=3". Values
// and the words after "--" are unchanged.
Arguments with_dashes(const Arguments& arguments);

// The option of a field: "--batch-size" for "batch_size".
std::string option_name(const std::string& field);

// Parses the arguments.
// Throws: HelpShown after printing the help that was asked for, otherwise InvalidArgument of one
// line.
struct HelpShown {};
void parse(CLI::App& app, const Arguments& arguments);

// Refuses 0 for these options, which take numbers: it would stand for an option that was not given.
// Throws: InvalidArgument.
void refuse_zeros(const CLI::App& app, const std::vector<std::string>& options);

// Thrown where the failure has been reported already; the program ends with the exit code.
struct AlreadyReported {
  int exit_code = 1;
};

// Runs a command, and turns its exceptions into one line on stderr and an exit code: 2 for bad
// usage, configuration, input or a checkpoint that cannot be used; 1 for a run that failed, or
// whose output cannot be written.
int run_guarded(const std::string& name, const std::function<int()>& command);

// Calls check_output_file() for each, before the work that leads to them. If one is "-", which is
// stdout, the command's other output goes to stderr, so that the result is alone on stdout.
void check_result_files(std::initializer_list<std::string> paths);

// Writes `json` as a file, whole or not at all, or to stdout if `path` is "-". Does nothing if it
// is empty.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

// This program's file.
std::filesystem::path self();
// The folder below which this program is, as `lockstep` is: a prefix, or a build folder.
std::filesystem::path own_prefix();
// The program of `lockstep train`, which is beside this one, or this one itself.
std::filesystem::path engine_program();
// The program of `lockstep compare`, which is there where it is built.
std::filesystem::path tools_program();
// The user's word for lockstep: its name if it is on PATH, otherwise its path from here.
std::string lockstep_command();

}  // namespace lockstep::inline v0::engine
