#include "lockstep/core/log.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep {

LogLevel log_threshold() {
  const auto text = process_env()("LOCKSTEP_LOG");
  if (!text) return LogLevel::kWarning;
  if (*text == "debug") return LogLevel::kDebug;
  if (*text == "info") return LogLevel::kInfo;
  if (*text == "error") return LogLevel::kError;
  return LogLevel::kWarning;
}

void log(LogLevel level, std::string_view message) {
  if (level < log_threshold()) return;
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  std::string line = "[lockstep] ";
  if (const auto rank = process_env()("RANK")) line += "rank " + *rank + ": ";
  line += kNames[static_cast<int>(level)];
  line += ": ";
  line += message;
  line += '\n';
  write_all(STDERR_FILENO, line);
}

void write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("stdout cannot be written", errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace lockstep
