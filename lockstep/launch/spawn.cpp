#include "lockstep/launch/spawn.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr const char* kSpawnCall = "LOCKSTEP_SPAWN_CALL";

// The call of spawn() that this process was started for: "<parent's pid>:<name>". A program that a
// rank starts inherits the variable, but has another parent.
std::optional<std::string> call_of_this_child() {
  const auto text = process_env()(kSpawnCall);
  if (!text) return std::nullopt;
  const auto colon = text->find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto parent = parse_int(std::string_view(*text).substr(0, colon), 1);
  if (parent != ::getppid()) return std::nullopt;
  return text->substr(colon + 1);
}

// The number of this call of spawn(), from 1: the only value that the process must remember between
// calls, because parent and child use it to find each other.
int next_call() {
  static std::atomic<int> calls{0};
  return ++calls;
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> command;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    command.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (command.empty())
    throw LaunchError("spawn: /proc/self/cmdline cannot be read; is /proc mounted?");
  return command;
}

// The path keeps the process's name in ps; the link works even if the file was replaced meanwhile.
std::string own_program() {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0 || n == sizeof path) return "/proc/self/exe";
  const std::string name(path, static_cast<size_t>(n));
  return ::access(name.c_str(), X_OK) == 0 ? name : "/proc/self/exe";
}

// True once this process runs as a rank: a further call of spawn() is nested then.
std::atomic<bool>& running_as_rank() {
  static std::atomic<bool> running{false};
  return running;
}

// The exit code.
int run_as_rank(const std::function<void()>& fn) {
  running_as_rank() = true;
  try {
    fn();
    return 0;
  } catch (const std::exception& error) {
    log_error(error.what());
  } catch (...) {
    log_error("an exception that is not a std::exception");
  }
  return 1;
}

}  // namespace

bool in_spawned_child() {
  return call_of_this_child().has_value();
}

LaunchResult spawn(int nproc, const std::function<void()>& fn, LaunchOptions options,
                   const SpawnPoint& point) {
  if (running_as_rank()) {
    throw LaunchError(
        "spawn() was called by a rank that spawn() started; ranks cannot spawn ranks");
  }
  const std::string call = point.name.empty() ? std::to_string(next_call()) : point.name;
  if (const auto mine = call_of_this_child()) {
    if (call == *mine) std::exit(run_as_rank(fn));
    return {};
  }
  options.nproc = nproc;
  options.command = own_command();
  if (!point.name.empty()) {
    options.command.resize(1);
    options.command.insert(options.command.end(), point.arguments.begin(), point.arguments.end());
  }
  options.program = own_program();
  if (point.by_fork) options.body = [&fn] { return run_as_rank(fn); };
  options.env[kSpawnCall] = std::to_string(::getpid()) + ":" + call;
  return launch(options);
}

}  // namespace lockstep::inline v0::launch
