#include "lockstep/cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/run/command.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"

namespace lockstep::cli {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailedExit = 1;

int complain(const std::string& who, const std::string& what, int code) {
  write_all(STDERR_FILENO, who + ": " + what + "\n");
  return code;
}

// Becomes the engine; returns only when it cannot.
int become_engine(const std::vector<std::string>& arguments) {
  const std::string who = "lockstep " + arguments.front();
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return complain(who, "/proc/self/exe cannot be read: " + error.message(), kFailedExit);
  const std::string engine = engine_path(self).string();
  if (::access(engine.c_str(), X_OK) != 0) {
    return complain(who,
                    engine +
                        " is missing; it is built with libtorch (target lockstep-engine, or "
                        "scripts/quickstart)",
                    kUsageExit);
  }
  std::vector<char*> argv{const_cast<char*>(engine.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(engine.c_str(), argv.data());
  return complain(who, system_error("cannot start " + engine, errno).what(), kFailedExit);
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
  if (name == "run") return run_command({arguments.begin() + 1, arguments.end()});
  if (name == "doctor") return doctor_command({arguments.begin() + 1, arguments.end()});
  if (name == "plan") return plan_command({arguments.begin() + 1, arguments.end()});
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    for (const char* flag : {"--help", "--version"}) names.emplace_back(flag);
    throw UsageError("no command '" + name + "'" + suggestion(name, names) +
                     "; see lockstep --help");
  }
  return become_engine(arguments);
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      {"run", "start a program on several ranks, on one host or many (torchrun's flags)"},
      {"train", "train a built-in model on your data"},
      {"eval", "measure a checkpoint on a data set"},
      {"predict", "label texts or images with a checkpoint"},
      {"compare", "run the same training in several ways, and compare them"},
      {"diff", "find where two runs or two checkpoints part"},
      {"checkpoint", "look into a checkpoint, or convert its tensors"},
      {"bench", "measure collectives, training steps or remote calls"},
      {"verify", "check that every way to divide a model gives one process's numbers"},
      {"plan", "show what a pipeline's schedule will do, before it runs"},
      {"doctor", "look at this host, the way to another, or the traces of a failed job"},
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
  const bool own = !arguments.empty() &&
                   (arguments[0] == "run" || arguments[0] == "doctor" || arguments[0] == "plan");
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

std::filesystem::path engine_path(const std::filesystem::path& program) {
  return program.parent_path().parent_path() / "libexec" / "lockstep" / "lockstep-engine";
}

}  // namespace lockstep::cli
