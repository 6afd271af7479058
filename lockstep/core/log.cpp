#include "lockstep/core/log.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log_never_waits.h"
#include "lockstep/core/mutex.h"

namespace lockstep {
namespace {

std::atomic<int> never_waits{0};

// Lines of a log that waits for nobody.
class Impatient {
 public:
  void write(std::string line) {
    const MutexLock lock(mutex_);
    if (dropped_ > 0)
      line = "[lockstep] warning: " + std::to_string(dropped_) +
             (dropped_ == 1 ? " line" : " lines") + " of the log had no room, and are lost\n" +
             line;
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
    // What calls itself writable takes so much at once.
    constexpr size_t kAtOnce = 4096;
    if (line.size() > kAtOnce) {
      line.resize(kAtOnce - 1);
      line += '\n';
    }
    write_all(STDERR_FILENO, line);
  }

 private:
  Mutex mutex_;
  uint64_t dropped_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
} impatient;

}  // namespace

LogNeverWaits::LogNeverWaits() noexcept {
  ++never_waits;
}

LogNeverWaits::~LogNeverWaits() {
  --never_waits;
}

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
  if (never_waits.load() > 0) return impatient.write(std::move(line));
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
