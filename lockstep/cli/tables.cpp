#include "lockstep/cli/tables.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/completion.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/manual.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::cli {
namespace {

// What a program prints.
std::string output_of(const std::vector<std::string>& command, const std::string& program,
                      Deadline deadline) {
  Pipe pipe = make_pipe();
  SubprocessOptions options;
  options.command = command;
  options.program = program;
  options.stdout_fd = pipe.write.get();
  options.env = launch::merge_environment(launch::current_environment(), {{kHelpFormat, "json"}});
  Subprocess process(options);
  pipe.write.reset();
  std::string text;
  for (char buffer[4096];;) {
    pollfd ready{.fd = pipe.read.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, deadline.poll_ms()) == 0)
      throw Timeout("'" + joined(command, " ") + "' does not answer");
    const ssize_t n = ::read(pipe.read.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  if (const ExitStatus status = process.wait(deadline); !status.ok())
    throw Error("'" + joined(command, " ") + "' failed");
  return text;
}

// The table of "train" or "train lm", and those of the words that follow it.
void add_tables(const std::string& program, std::vector<std::string> words, Deadline deadline,
                std::vector<OptionTable>& tables) {
  std::vector<std::string> command{"lockstep"};
  command.insert(command.end(), words.begin(), words.end());
  command.emplace_back("--help");
  OptionTable table = table_from_json(output_of(command, program, deadline));
  command.pop_back();
  table.command = joined(command, " ");
  if (words.size() > 1) table.words.clear();
  const std::vector<std::string> next = table.words;
  tables.push_back(std::move(table));
  for (const std::string& word : next) {
    words.push_back(word);
    add_tables(program, words, deadline, tables);
    words.pop_back();
  }
}

}  // namespace

AllTables all_tables() {
  AllTables all;
  const Deadline deadline = Deadline::seconds(120);
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  std::map<std::string, std::vector<std::string>> absent;  // commands by their program
  for (const Command& command : commands()) {
    const std::string name = command.name;
    if (name == "run") {
      all.tables.push_back(run_table());
    } else if (name == "doctor") {
      all.tables.push_back(doctor_table());
    } else if (name == "plan") {
      all.tables.push_back(plan_table());
    } else if (name == "completion") {
      all.tables.push_back(completion_table());
    } else if (name == "man") {
      all.tables.push_back(manual_table());
    } else {
      const std::string program = program_path(self, command.program).string();
      if (::access(program.c_str(), X_OK) == 0) {
        add_tables(program, {name}, deadline, all.tables);
      } else {
        absent[command.program].push_back(name);
      }
    }
  }
  for (const auto& [program, names] : absent)
    all.left_out.push_back("without the options of " + joined(names) + ", because " +
                           program_path(self, program).string() + " is missing; " +
                           how_to_build(self, program));
  return all;
}

}  // namespace lockstep::inline v0::cli
