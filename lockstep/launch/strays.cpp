#include "lockstep/launch/strays.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::launch {
namespace {

// Returns nullopt if the process has ended.
std::optional<pid_t> parent_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

bool has_variable(const std::string& process, const std::string& variable) {
  std::ifstream file("/proc/" + process + "/environ", std::ios::binary);
  const std::string text =
      std::string(1, '\0') + std::string{std::istreambuf_iterator<char>(file), {}};
  return text.find('\0' + variable + '\0') != std::string::npos;
}

}  // namespace

bool Strays::look(const std::set<pid_t>& ranks) {
  // It has ended, or is no child any more: processes of a rank's group are reaped elsewhere.
  std::erase_if(found_, [](pid_t stray) { return ::waitpid(stray, nullptr, WNOHANG) != 0; });
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    const std::string name = entry->d_name;
    const auto process = parse_int(name, 1);
    if (!process || ranks.contains(static_cast<pid_t>(*process))) continue;
    if (parent_of(name) == ::getpid() && has_variable(name, variable_))
      found_.insert(static_cast<pid_t>(*process));
  }
  return !found_.empty();
}

void Strays::signal(int number) const noexcept {
  for (const pid_t stray : found_) {
    // After it is reaped, its PIDs may be reused.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(stray), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
      continue;
    const pid_t group = ::getpgid(stray);
    if (group > 1 && group != ::getpgrp()) ::kill(-group, number);
    ::kill(stray, number);
  }
}

}  // namespace lockstep::inline v0::launch
