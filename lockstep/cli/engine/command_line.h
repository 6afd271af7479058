// What the engine's commands share: reading arguments, saying what is wrong, writing results.
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

namespace lockstep::engine {

// Arguments after the command's name.
using Arguments = std::vector<std::string>;

// A program's main(): runs the command that argv[1] names; returns the exit code.
struct NamedCommand {
  const char* name;
  int (*run)(const Arguments&);
};
int run_one_of(const std::vector<NamedCommand>& commands, int argc, char** argv);

// Long options may be spelled with '_' for '-': "--batch_size=3" becomes "--batch-size=3". Values
// are left alone, and what follows "--".
Arguments with_dashes(const Arguments& arguments);

// "batch_size" as an option: "--batch-size".
std::string option_name(const std::string& field);

// Parses.
// Throws: HelpShown after printing the help that was asked for, InvalidArgument of one line
// otherwise.
struct HelpShown {};
void parse(CLI::App& app, const Arguments& arguments);

// Throws: InvalidArgument for one of these options (numbers) that was given as 0, which would stand
// for one that was not.
void refuse_zeros(const CLI::App& app, const std::vector<std::string>& options);

// The failure has been told already; the program ends with the exit code.
struct Told {
  int exit_code = 1;
};

// Runs a command, turning what it throws into one line on stderr and an exit code: 2 for bad usage,
// configuration, input or a checkpoint that cannot be used; 1 for a run that failed, or whose
// output cannot be written.
int run_guarded(const std::string& name, const std::function<int()>& command);

// Before the work that leads to them: check_output_file() of each. Where one is "-", which is
// stdout, what the command prints besides goes to stderr, so that the result is alone there.
void check_result_files(std::initializer_list<std::string> paths);

// `json` as a file, whole or not at all, or to stdout if `path` is "-". Nothing if it is empty.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

// This program's file.
std::filesystem::path self();
// The program of `lockstep train`, which stands beside this one, or is it.
std::filesystem::path engine_program();
// That of `lockstep compare`, which stands there too where it is built.
std::filesystem::path tools_program();
// How the user calls lockstep: its name if it is on PATH, else its path from here.
std::string lockstep_command();

}  // namespace lockstep::engine
