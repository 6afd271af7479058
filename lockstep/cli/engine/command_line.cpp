#include "lockstep/cli/engine/command_line.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/option_table.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/core/standard_streams.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

int report(const std::string& name, const std::string& message, int code) {
  write_all(STDERR_FILENO, "lockstep " + name + ": " + printable(first_line(message)) + "\n");
  return code;
}

}  // namespace

int run_one_of(const std::vector<NamedCommand>& commands, int argc, char** argv) {
  open_standard_streams();
  const Arguments words(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> names;
  for (const NamedCommand& command : commands) {
    if (!words.empty() && words[0] == command.name)
      return command.run({words.begin() + 1, words.end()});
    names.emplace_back(command.name);
  }
  write_all(STDERR_FILENO, "lockstep: there is no command '" +
                               (words.empty() ? std::string() : words[0]) +
                               "' in this program, which has " + joined(names) + "\n");
  return 2;
}

Arguments with_dashes(const Arguments& arguments) {
  Arguments result;
  bool options = true;
  for (std::string argument : arguments) {
    if (argument == "--") options = false;
    if (options && argument.rfind("--", 0) == 0) {
      std::replace(
          argument.begin(),
          argument.begin() + static_cast<ptrdiff_t>(std::min(argument.find('='), argument.size())),
          '_', '-');
    }
    result.push_back(std::move(argument));
  }
  return result;
}

std::string option_name(const std::string& field) {
  std::string name = "--" + field;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void parse(CLI::App& app, const Arguments& arguments) {
  try {
    cli::parse_options(app, arguments);
  } catch (const CLI::CallForHelp&) {
    std::cout << cli::help_output(cli::table_of(app), cli::help_of(app, cli::help_width()))
              << std::flush;
    throw HelpShown{};
  }
}

void refuse_zeros(const CLI::App& app, const std::vector<std::string>& options) {
  for (const std::string& name : options) {
    const CLI::Option* option = app.get_option(name);
    if (option->count() > 0 && option->as<double>() == 0)
      throw InvalidArgument(name + " is " + option->results().back() +
                            "; give a number above 0, or leave it out");
  }
}

namespace {

// Printed text must not get lost in silence.
void finish_stdout() {
  std::cout.flush();
  std::clearerr(stdout);
  if (std::fflush(stdout) != 0) throw system_error("stdout cannot be written", errno);
  if (std::cout) return;
  // It failed earlier, and the reason is forgotten; the next write gives it again.
  if (::write(STDOUT_FILENO, "\n", 1) < 0) throw system_error("stdout cannot be written", errno);
  throw Error("stdout cannot be written");
}

// Whether the file system refuses the given path, as opposed to a run that failed.
bool is_of_the_path(const std::error_code& code) {
  for (const std::errc each :
       {std::errc::permission_denied, std::errc::no_such_file_or_directory,
        std::errc::not_a_directory, std::errc::is_a_directory, std::errc::filename_too_long,
        std::errc::too_many_symbolic_link_levels, std::errc::read_only_file_system}) {
    if (code == each) return true;
  }
  return false;
}

int run_to_the_end(const std::function<int()>& command) {
  int code = 0;
  try {
    code = command();
  } catch (const HelpShown&) {
  }
  finish_stdout();
  return code;
}

}  // namespace

int run_guarded(const std::string& name, const std::function<int()>& command) {
  try {
    return run_to_the_end(command);
  } catch (const AlreadyReported& reported) {
    return reported.exit_code;
  } catch (const fs::filesystem_error& error) {
    return report(name, error.path1().string() + ": " + error.code().message(),
                  is_of_the_path(error.code()) ? 2 : 1);
  } catch (const InvalidArgument& error) {
    return report(name, error.what(), 2);
  } catch (const DataError& error) {
    return report(name, error.what(), 2);
  } catch (const CheckpointError& error) {
    return report(name, error.what(), 2);
  } catch (const c10::Error& error) {
    return report(name, error.what_without_backtrace(), 1);
  } catch (const std::exception& error) {
    return report(name, error.what(), 1);
  }
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  write_output_file(path,
                    json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void check_result_files(std::initializer_list<std::string> paths) {
  for (const std::string& path : paths) {
    check_output_file(path);
    if (path == kStdoutName) std::cout.rdbuf(std::cerr.rdbuf());
  }
}

fs::path self() {
  return fs::read_symlink("/proc/self/exe");
}

fs::path own_prefix() {
  fs::path folder = self().parent_path();  // <prefix>/libexec/lockstep, or torch-2.13 in it
  while (folder.has_relative_path() && folder.filename() != "libexec")
    folder = folder.parent_path();
  return folder.parent_path();
}

fs::path engine_program() {
  return self().parent_path() / "lockstep-engine";
}

fs::path tools_program() {
  return self().parent_path() / "lockstep-tools";
}

std::string lockstep_command() {
  const fs::path command = own_prefix() / "bin" / "lockstep";
  std::istringstream path(process_env()("PATH").value_or(""));
  for (std::string folder; std::getline(path, folder, ':');) {
    std::error_code ignored;
    if (!folder.empty() && fs::equivalent(fs::path(folder) / "lockstep", command, ignored))
      return "lockstep";
  }
  return path_from_here(command);
}

}  // namespace lockstep::inline v0::engine
