#include "lockstep/core/log.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log_never_waits.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {
namespace {

std::atomic<int> never_waits{0};

// A writable descriptor takes this much at once. A terminal may make two bytes of one.
constexpr size_t kAtOnce = 4096, kAtOnceOfTerminal = 128;

size_t taken_at_once(int fd, size_t size) {
  struct stat info{};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return size;
  return ::isatty(fd) == 1 ? kAtOnceOfTerminal : kAtOnce;
}

Mutex room_mutex;  // held from checking for room until it is filled

// The lines of a log that never blocks.
class Impatient {
 public:
  void write(std::string line) {
    const MutexLock lock(mutex_);
    if (dropped_ > 0)
      line = "[lockstep] warning: " + std::to_string(dropped_) +
             (dropped_ == 1 ? " line" : " lines") + " of the log had no room, and are lost\n" +
             line;
    // The rest of an incompletely written line is dropped.
    if (torn_) line.insert(0, 1, '\n');
    if (line.size() > kAtOnce) {
      line.resize(kAtOnce - 1);
      line += '\n';
    }
    const ssize_t n = write_if_room(STDERR_FILENO, line);
    const bool whole = n == static_cast<ssize_t>(line.size());
    dropped_ = whole ? 0 : n > 0 ? 1 : dropped_ + 1;
    torn_ = n > 0 ? !whole : torn_;
  }

 private:
  Mutex mutex_;
  uint64_t dropped_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool torn_ LOCKSTEP_GUARDED_BY(mutex_) = false;
} impatient;

}  // namespace

ssize_t write_if_room(int fd, std::string_view text) noexcept {
  const MutexLock lock(room_mutex);
  const size_t piece = taken_at_once(fd, text.size());
  size_t written = 0;
  int error = EAGAIN;
  while (written < text.size()) {
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    const ssize_t n = ::write(fd, text.data() + written, std::min(piece, text.size() - written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      error = errno;
      break;
    }
    written += static_cast<size_t>(n);
  }
  if (written > 0) return static_cast<ssize_t>(written);
  errno = error;
  return -1;
}

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

}  // namespace lockstep::inline v0
