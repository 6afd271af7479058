// What `lockstep compare --methods` is asked for, and the programs that this means. Pure but for
// reading the command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/methods.h"

namespace lockstep::engine {

struct MethodsArguments {
  std::vector<TrainingMethod> methods;
  std::vector<int64_t> scaling;  // further numbers of ranks
  int64_t nproc = 2;
  int64_t threads = 0;    // of a rank; 0: processors / ranks
  std::string data;       // "": the built-in sentences
  bool built_in = false;  // `data` is where they are
  std::string vocab;      // "": not given, so with all texts below
  std::string model = "mini";
  std::string output = "runs/compare";
  std::string json;
  std::string programs;    // the folder of the methods' programs; "": this installation's
  double timeout = 86400;  // seconds that a method may take
  std::string recipe;      // "": the default one
  std::string amp;         // for the methods that take it
  bool remove_spaces = false;
  // Options that go to every program as they stand, such as {"--epochs", "1"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Throws HelpShown, InvalidArgument. Looks at nothing but the arguments.
MethodsArguments parse_methods_arguments(const Arguments& arguments);

// One run of a program.
struct MethodJob {
  TrainingMethod method;
  int64_t nproc = 1;             // ranks or devices
  bool for_scaling = false;      // not a row of the table
  std::filesystem::path folder;  // its output
  std::filesystem::path log() const { return folder / "log.txt"; }
  std::filesystem::path result() const { return folder / "run.json"; }
};

// The methods on --nproc ranks, then those that have ranks on the other numbers of --scaling.
std::vector<MethodJob> plan_jobs(const MethodsArguments& arguments);

// Whether plan_jobs() calls a folder so, for any methods and sizes.
bool is_job_folder(const std::string& name);

// The command line. `programs`: the folder of the programs; `lockstep`: the command.
std::vector<std::string> job_command(const MethodJob& job, const MethodsArguments& arguments,
                                     const std::filesystem::path& programs,
                                     const std::filesystem::path& lockstep);

}  // namespace lockstep::engine
