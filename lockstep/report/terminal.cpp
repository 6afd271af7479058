#include "lockstep/report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace lockstep::inline v0 {
namespace {

bool shows_unicode(const EnvLookup& env) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto value = env(name);
    if (!value) continue;
    std::transform(value->begin(), value->end(), value->begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return value->find("utf-8") != std::string::npos || value->find("utf8") != std::string::npos;
  }
  return false;
}

bool usable(int64_t columns) {
  constexpr int kNarrowest = 20, kWidest = 1000;
  return columns >= kNarrowest && columns <= kWidest;
}

int find_columns(int fd, const EnvLookup& env) {
  if (const auto text = env("LOCKSTEP_COLUMNS")) {
    const auto columns = parse_int(*text);
    if (columns && usable(*columns)) return static_cast<int>(*columns);
  }
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && usable(size.ws_col)) return size.ws_col;
  if (const auto text = env("COLUMNS")) {
    const auto columns = parse_int(*text);
    if (columns && usable(*columns)) return static_cast<int>(*columns);
  }
  return Terminal().columns;
}

}  // namespace

size_t columns_of(int fd, size_t otherwise) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && usable(size.ws_col) ? size.ws_col : otherwise;
}

Terminal find_terminal(int fd, const EnvLookup& env) {
  Terminal terminal;
  const auto told = env("LOCKSTEP_TTY");
  terminal.interactive =
      (told ? *told == "1" : ::isatty(fd) == 1) && env("TERM").value_or("") != "dumb";
  terminal.unicode = shows_unicode(env);
  terminal.columns = find_columns(fd, env);
  return terminal;
}

}  // namespace lockstep::inline v0
