#include "lockstep/cli/commands.h"

#include <unistd.h>

#include <cerrno>

#include "lockstep/cli/completion.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/export/command.h"
#include "lockstep/cli/libtorch_choice.h"
#include "lockstep/cli/manual.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/run/command.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailedExit = 1;
constexpr const char* kEngine = "lockstep-engine";
constexpr const char* kTools = "lockstep-tools";

int complain(const std::string& who, const std::string& what, int code) {
  write_all(STDERR_FILENO, who + ": " + what + "\n");
  return code;
}

// Executes the program `name` in place of this one; returns only when it cannot.
int become(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string who = "lockstep " + arguments.front();
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return complain(who, "/proc/self/exe cannot be read: " + error.message(), kFailedExit);
  EngineStart start;
  try {
    start = engine_start(self, name, process_env());
  } catch (const InvalidArgument& problem) {
    return complain(who, problem.what(), kUsageExit);
  }
  const std::string program = start.program.string();
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (start.environment) {
    std::vector<char*> envp;
    for (const std::string& line : *start.environment)
      envp.push_back(const_cast<char*>(line.c_str()));
    envp.push_back(nullptr);
    ::execve(program.c_str(), argv.data(), envp.data());
  } else {
    ::execv(program.c_str(), argv.data());
  }
  return complain(who, system_error("cannot start " + program, errno).what(), kFailedExit);
}

using OwnCommand = int (*)(const std::vector<std::string>&);

// The command of this program; nullptr: another program has it, or there is none.
OwnCommand own_command(const std::string& name) {
  if (name == "run") return run_command;
  if (name == "doctor") return doctor_command;
  if (name == "plan") return plan_command;
  if (name == "export") return export_command;
  if (name == "completion") return completion_command;
  if (name == "man") return manual_command;
  return nullptr;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    write_all(STDERR_FILENO, help_text());
    return kUsageExit;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    write_stdout(help_text());
    return 0;
  }
  if (name == "--version" || name == "-V") {
    write_stdout(std::string("lockstep ") + LOCKSTEP_VERSION + "\n");
    return 0;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (name == "plan" && plan_calibrates(rest)) return become(kTools, arguments);
  if (const auto own = own_command(name)) return own(rest);
  std::vector<std::string> names{"--help", "--version"};
  for (const Command& command : commands()) {
    if (name == command.name) return become(command.program, arguments);
    names.emplace_back(command.name);
  }
  throw UsageError("no command '" + name + "'" + suggestion(name, names) + "; see lockstep --help");
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      {"run", "start a program on several ranks, on one host or many (torchrun's flags)"},
      {"train", "train a built-in model on your data", kEngine},
      {"eval", "measure a checkpoint on a data set", kEngine},
      {"predict", "label texts or images with a checkpoint", kEngine},
      {"compare", "run the same training in several ways, and compare them", kTools},
      {"diff", "find where two runs or two checkpoints part", kEngine},
      {"checkpoint", "look into a checkpoint, or convert its tensors", kEngine},
      {"export", "write a checkpoint's model as an ONNX, pt2 or TorchScript file"},
      {"bench", "measure collectives, training steps or remote calls", kTools},
      {"verify", "check that every way to divide a model gives one process's numbers", kTools},
      {"plan", "compute memory, time and the best layout of a training before it runs"},
      {"doctor", "look at this host, the way to another, or the traces of a failed job"},
      {"completion", "print the script by which bash, zsh or fish completes lockstep's words"},
      {"man", "print a man page, or write all of them"},
  };
  return kCommands;
}

std::string help_text() {
  std::string text =
      "Usage: lockstep COMMAND [arguments]\n\nDistributed training for C++ on "
      "libtorch.\n\nCommands:\n";
  for (const Command& command : commands()) {
    std::string name = command.name;
    name.resize(12, ' ');
    text += "  " + name + command.summary + "\n";
  }
  return text +
         "\n'lockstep COMMAND --help' says more about one. 'lockstep --version' prints the "
         "version.\n\nExample:\n  lockstep train mnist --data digits --nproc 2\n";
}

int main_of_lockstep(const std::vector<std::string>& arguments) {
  const bool own = !arguments.empty() && own_command(arguments[0]) != nullptr;
  const std::string who = own ? "lockstep " + arguments[0] : "lockstep";
  try {
    return dispatch(arguments);
  } catch (const InvalidArgument& error) {
    return complain(who, error.what(), kUsageExit);
  } catch (const LaunchError& error) {
    return complain(who, error.what(), kUsageExit);
  } catch (const std::exception& error) {
    return complain(who, error.what(), kFailedExit);
  }
}

std::filesystem::path program_path(const std::filesystem::path& lockstep, const std::string& name) {
  return lockstep.parent_path().parent_path() / "libexec" / "lockstep" / name;
}

std::string how_to_build(const std::filesystem::path& lockstep, const std::string& name) {
  const std::filesystem::path build = lockstep.parent_path().parent_path();
  std::error_code ignored;
  if (std::filesystem::exists(build / "CMakeCache.txt", ignored))
    return "build it: cmake --build " + shell_word(build.string()) + " --target " + name;
  return "build Lockstep's target " + name + ", and install it here";
}

}  // namespace lockstep::inline v0::cli
