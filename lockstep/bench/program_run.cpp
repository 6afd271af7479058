#include "lockstep/bench/program_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <deque>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr size_t kKeptLines = 20;
constexpr int kTickMs = 200;
// The time from SIGTERM to SIGKILL for a program that passes its deadline, and for one that is
// stopped: a launcher gives its ranks 25 seconds.
constexpr Deadline::Duration kGrace = std::chrono::seconds(10),
                             kStopGrace = std::chrono::seconds(40);
const auto kLastWords = std::chrono::seconds(2);  // for pipes that a grandchild holds open

// Removes a terminal's commands ("\x1b[K") and the spaces at the ends.
std::string plain(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      for (i += 2; i < line.size() && (line[i] < '@' || line[i] > '~');) ++i;
    } else {
      text += line[i];
    }
  }
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

// Keeps the whole lines of both streams in a file, and the last of them in memory.
class ProgramLog {
 public:
  ProgramLog(const std::filesystem::path& path, bool append)
      : path_(path.string()),
        fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC),
                   0666)) {
    if (!fd_) throw system_error("cannot write " + path_, errno);
  }

  void add(const std::vector<launch::Piece>& pieces) {
    for (const launch::Piece& piece : pieces) {
      if (piece.end == launch::Piece::End::kProgress) continue;  // a bar's turn
      std::string line = plain(piece.text);
      if (line.empty() && piece.text != "\n") continue;  // the rest of a bar
      write(line + "\n");
      last_.push_back(std::move(line));
      if (last_.size() > kKeptLines) last_.pop_front();
    }
  }
  std::vector<std::string> last() const { return {last_.begin(), last_.end()}; }

 private:
  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::write(fd_.get(), text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error("cannot write " + path_, errno);
      text.remove_prefix(static_cast<size_t>(n));
    }
  }

  std::string path_;
  UniqueFd fd_;
  std::deque<std::string> last_;
};

// Makes a terminal for the program, as wide as this one; its output is read at `read`.
Pipe make_terminal(int columns) {
  Pipe pipe;
  pipe.read.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 128> name{};
  if (!pipe.read || ::grantpt(pipe.read.get()) != 0 || ::unlockpt(pipe.read.get()) != 0 ||
      ::ptsname_r(pipe.read.get(), name.data(), name.size()) != 0) {
    throw system_error("cannot make a terminal", errno);
  }
  pipe.write.reset(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pipe.write) throw system_error(std::string("cannot open ") + name.data(), errno);
  termios modes{};
  if (::tcgetattr(pipe.write.get(), &modes) == 0) {
    ::cfmakeraw(&modes);  // "\n" stays "\n"
    ::tcsetattr(pipe.write.get(), TCSANOW, &modes);
  }
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  ::ioctl(pipe.write.get(), TIOCSWINSZ, &size);
  return pipe;
}

// The output that arrives on one descriptor of the program.
struct Stream {
  UniqueFd fd;
  bool shown = false;  // it is passed on to this process's stderr at once
  launch::LineSplitter splitter = launch::LineSplitter();

  // Takes the bytes that have arrived; returns false at the end.
  bool take(ProgramLog& log) {
    std::array<char, 65536> part;
    const ssize_t n = ::read(fd.get(), part.data(), part.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n <= 0) {  // a terminal ends with EIO
      log.add(splitter.flush());
      fd.reset();
      return false;
    }
    const std::string_view bytes(part.data(), static_cast<size_t>(n));
    if (shown) write_all(STDERR_FILENO, bytes);
    log.add(splitter.feed(bytes));
    return true;
  }
};

// Takes from the streams until both have ended or `until`; returns whether they have. Returns early
// when `signals` has some.
bool take_all(std::array<Stream, 2>& streams, ProgramLog& log, Deadline until,
              const launch::SignalPipe* signals = nullptr) {
  std::array<pollfd, 3> waits{};
  waits[2] = {signals == nullptr ? -1 : signals->fd(), POLLIN, 0};
  while (streams[0].fd || streams[1].fd) {
    for (size_t i = 0; i < streams.size(); ++i)
      waits[i] = {streams[i].fd ? streams[i].fd.get() : -1, POLLIN, 0};
    if (::poll(waits.data(), waits.size(), until.poll_ms(kTickMs)) < 0 && errno != EINTR)
      throw system_error("cannot wait for a program", errno);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (waits[i].revents != 0) streams[i].take(log);
    }
    if (waits[2].revents != 0 || until.expired()) return !streams[0].fd && !streams[1].fd;
  }
  return true;
}

// Waits for the program's end or the deadline; returns the signal that came before, or 0.
int await_end(Subprocess& program, std::array<Stream, 2>& streams, ProgramLog& log,
              Deadline deadline, launch::SignalPipe* signals) {
  // It waits in short turns, because the program may end while something that it started holds its
  // streams open.
  while (!program.poll() && !deadline.expired()) {
    const int turn_ms = deadline.poll_ms(kTickMs);
    if (take_all(streams, log, Deadline::after(std::chrono::milliseconds(turn_ms)), signals)) {
      // The program has closed its streams and goes on.
      std::array<pollfd, 2> waits{
          {{program.exit_fd(), POLLIN, 0}, {signals == nullptr ? -1 : signals->fd(), POLLIN, 0}}};
      ::poll(waits.data(), waits.size(), turn_ms);
    }
    if (signals == nullptr) continue;
    if (const std::vector<int> came = signals->take(); !came.empty()) return came.front();
  }
  return 0;
}

// Ends a program that has passed its deadline or is stopped.
void end_it(Subprocess& program, std::array<Stream, 2>& streams, ProgramLog& log,
            Deadline::Duration patience, launch::SignalPipe* signals) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    program.signal_group(signal);
    const Deadline grace = Deadline::after(patience);
    await_end(program, streams, log, grace, signals);
    if (program.poll()) return;
  }
}

}  // namespace

ProgramEnd run_program(const ProgramRun& options, Deadline deadline) {
  ProgramLog log(options.log, options.append);
  Pipe out = make_pipe();
  Pipe err = options.terminal.interactive ? make_terminal(options.terminal.columns) : make_pipe();
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Subprocess program({.command = options.command,
                      .program = {},
                      .env = options.env,
                      .stdin_fd = null.get(),
                      .stdout_fd = out.write.get(),
                      .stderr_fd = err.write.get(),
                      .inherit = {},
                      .cpus = {}});
  out.write.reset();
  err.write.reset();
  std::array<Stream, 2> streams{
      {{.fd = std::move(out.read)},
       {.fd = std::move(err.read), .shown = options.terminal.interactive}}};
  ProgramEnd end;
  end.stopped_by = await_end(program, streams, log, deadline, options.signals);
  if (end.stopped_by == 0 && program.poll())
    end.status = program.poll();
  else
    end_it(program, streams, log, end.stopped_by == 0 ? kGrace : kStopGrace, options.signals);
  take_all(streams, log, Deadline::after(kLastWords));
  // Processes that it has left behind would take processors and ports from the jobs that follow.
  program.signal_group(SIGKILL);
  end.last_lines = log.last();
  return end;
}

std::string failure_text(const ProgramEnd& end, Deadline deadline) {
  std::string text;
  if (!end.status) {
    text = "no end within " + duration_text(deadline.timeout_seconds());
  } else if (end.status->signal != 0) {
    const char* name = ::sigabbrev_np(end.status->signal);
    text = "signal " +
           (name == nullptr ? std::to_string(end.status->signal) : std::string("SIG") + name);
  } else {
    text = "exit code " + std::to_string(end.status->exit_code);
  }
  const auto last = std::find_if(end.last_lines.rbegin(), end.last_lines.rend(),
                                 [](const std::string& line) { return !line.empty(); });
  if (last == end.last_lines.rend()) return text;
  return text + ": " + last->substr(std::min(last->find_first_not_of(" \t"), last->size()));
}

}  // namespace lockstep::inline v0::bench
