#include "lockstep/cli/tables.h"

#include <filesystem>
#include <utility>

#include "lockstep/cli/child_output.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/completion.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/export/command.h"
#include "lockstep/cli/manual.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::cli {
namespace {

// Of a command of this program.
OptionTable own_table(const std::string& name) {
  if (name == "run") return run_table();
  if (name == "doctor") return doctor_table();
  if (name == "plan") return plan_table();
  if (name == "export") return export_table();
  if (name == "completion") return completion_table();
  if (name == "man") return manual_table();
  throw Error("the command " + name + " has no table of its options");
}

struct Answer {
  std::string table;     // JSON; "": the command's program is not there
  std::string why_none;  // a line without the newline
};

// Asks for the help of "lockstep WORDS" as the user would, so that this finds the same programs.
Answer ask(const std::vector<std::string>& words, Deadline deadline) {
  SubprocessOptions options;
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.command = {"lockstep"};
  options.command.insert(options.command.end(), words.begin(), words.end());
  options.command.emplace_back("--help");
  options.env = launch::merge_environment(launch::current_environment(), {{kHelpFormat, "json"}});
  Pipe out = make_pipe(), err = make_pipe();
  options.stdout_fd = out.write.get();
  options.stderr_fd = err.write.get();
  Subprocess process(options);
  out.write.reset();
  err.write.reset();
  Answer answer{.table = read_all(out.read.get(), deadline),
                .why_none = read_all(err.read.get(), deadline)};
  while (answer.why_none.ends_with('\n')) answer.why_none.pop_back();
  const ExitStatus status = process.wait(deadline);
  if (status.ok()) return answer;
  constexpr int kUsageExit = 2;  // where a program is missing
  if (status.exit_code != kUsageExit || answer.why_none.find('\n') != std::string::npos)
    throw Error("'lockstep " + joined(words, " ") + " --help' failed: " + answer.why_none);
  answer.table.clear();
  return answer;
}

// The table of "train" or "train lm", and those of the words that follow it.
void add_tables(const std::vector<std::string>& words, Deadline deadline, AllTables& all) {
  const Answer answer = ask(words, deadline);
  if (answer.table.empty()) {
    all.left_out.push_back("the options of " + joined(words, " ") +
                           " are left out: " + answer.why_none);
    return;
  }
  OptionTable table = table_from_json(answer.table);
  table.command = "lockstep " + joined(words, " ");
  if (words.size() > 1) table.words.clear();
  const std::vector<std::string> next = table.words;
  all.tables.push_back(std::move(table));
  for (const std::string& word : next) {
    std::vector<std::string> longer = words;
    longer.push_back(word);
    add_tables(longer, deadline, all);
  }
}

}  // namespace

AllTables all_tables() {
  AllTables all;
  const Deadline deadline = Deadline::seconds(120);
  for (const Command& command : commands()) {
    const std::string name = command.name;
    if (command.program != nullptr) {
      add_tables({name}, deadline, all);
    } else {
      all.tables.push_back(own_table(name));
    }
  }
  return all;
}

}  // namespace lockstep::inline v0::cli
