#include "lockstep/cli/engine/command_line.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

int report(const std::string& name, const std::string& message, int code) {
  write_all(STDERR_FILENO, "lockstep " + name + ": " + first_line(message) + "\n");
  return code;
}

}  // namespace

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
  Arguments reversed = with_dashes(arguments);
  std::reverse(reversed.begin(), reversed.end());  // as CLI11 wants a vector
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    throw HelpShown{};
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(first_line(error.what()) + "; see " + app.get_name() + " --help");
  }
}

int run_guarded(const std::string& name, const std::function<int()>& command) {
  try {
    return command();
  } catch (const HelpShown&) {
    return 0;
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
  write_file_aside(path, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string read_text_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || fs::is_directory(path)) throw InvalidArgument("cannot read " + path.string());
  return text.str();
}

fs::path self() {
  return fs::read_symlink("/proc/self/exe");
}

std::string lockstep_command() {
  const fs::path prefix =
      self().parent_path().parent_path().parent_path();  // of libexec/lockstep/lockstep-engine
  const fs::path command = prefix / "bin" / "lockstep";
  std::istringstream path(process_env()("PATH").value_or(""));
  for (std::string folder; std::getline(path, folder, ':');) {
    std::error_code ignored;
    if (!folder.empty() && fs::equivalent(fs::path(folder) / "lockstep", command, ignored))
      return "lockstep";
  }
  std::error_code error;
  const fs::path near = fs::relative(command, error);
  if (error || near.empty() || near.native().size() >= command.native().size())
    return command.string();
  return near.has_parent_path() ? near.string() : "./" + near.string();
}

}  // namespace lockstep::engine
