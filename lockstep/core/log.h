// Log lines on stderr: one write(2) per line, so that lines of several processes never interleave.
//
// Levels: debug, info, warning, error, chosen by LOCKSTEP_LOG (default: warning). Thread-safe.
#pragma once

#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How urgent a line is.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The level from LOCKSTEP_LOG; kWarning when unset or unknown.
LOCKSTEP_API LogLevel log_threshold();

// Writes "[lockstep] warning: message\n" (with "rank R: " where RANK is set) if `level` passes the
// threshold.
LOCKSTEP_API void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) {
  log(LogLevel::kDebug, message);
}
inline void log_info(std::string_view message) {
  log(LogLevel::kInfo, message);
}
inline void log_warning(std::string_view message) {
  log(LogLevel::kWarning, message);
}
inline void log_error(std::string_view message) {
  log(LogLevel::kError, message);
}

// Writes all of `text` to `fd`, retrying short writes; errors are ignored (there is nowhere left to
// report them).
LOCKSTEP_API void write_all(int fd, std::string_view text) noexcept;

// Writes all of `text` to stdout, or throws SystemError: requested output must not get lost in
// silence.
LOCKSTEP_API void write_stdout(std::string_view text);

}  // namespace lockstep::inline v0
