#include "lockstep/launch/console.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/core/log_never_waits.h"

namespace lockstep::inline v0::launch {

std::string LineJoiner::close() {
  if (open_source_ < 0) return "";
  open_source_ = -1;
  return terminal_ && open_bar_ ? "\r\x1b[K" : "\n";
}

std::string LineJoiner::join(int source, const Piece& piece, std::string_view prefix) {
  std::string out;
  if (open_source_ != source) out += close();
  // A line continues after a cut; it starts anew after a progress update, except for the line's end
  // of a "\r\n" cut in two.
  const bool goes_on =
      open_source_ == source && (open_end_ == Piece::End::kForced || piece.text == "\n");
  if (!goes_on) out += prefix;
  out += piece.text;
  // Progress bars that begin with "\r" instead of ending with it appear as an update followed by an
  // incomplete line.
  open_bar_ = piece.end == Piece::End::kProgress || (open_bar_ && open_source_ == source);
  open_source_ = piece.end == Piece::End::kLine ? -1 : source;
  open_end_ = piece.end;
  return out;
}

Console::Console(int fd) : fd_(fd), terminal_(::isatty(fd) == 1), joiner_(terminal_) {}

void Console::put(int source, const Piece& piece, std::string_view prefix) {
  if (broken()) return;
  waiting_ += joiner_.join(source, piece, prefix);
}

void Console::close_line() {
  if (!broken()) waiting_ += joiner_.close();
}

void Console::flush() {
  while (backlog() > 0 && !broken()) {
    const ssize_t n = write_if_room(fd_, std::string_view(waiting_).substr(written_));
    if (n > 0) {
      written_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else if (n < 0) {
      error_ = errno;
    }
  }
  if (broken() || backlog() == 0) {
    waiting_.clear();
    written_ = 0;
  } else if (written_ > (size_t{1} << 16)) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
}

void Console::watch(PollSet& polls) const {
  polls.add([this] { return backlog() > 0 ? fd_ : -1; }, POLLOUT);
}

bool write_rest(Console& out, Console& err, SignalPipe& signals, bool stopped) {
  const auto give_up_at = std::chrono::steady_clock::now() + kLastWords;
  while (true) {
    PollSet polls;
    for (Console* console : {&out, &err}) {
      console->flush();
      console->watch(polls);
    }
    if (out.backlog() + err.backlog() == 0) return true;
    if (stopped && std::chrono::steady_clock::now() >= give_up_at) return false;
    if (stopped) polls.wake_at(give_up_at);
    polls.add(signals.fd(), POLLIN);
    polls.wait();
    if (!signals.take().empty()) return false;
  }
}

void write_last_words(int fd, std::string_view text) {
  Console console(fd);
  console.put(0, {std::string(text), Piece::End::kLine}, "");
  const auto give_up_at = std::chrono::steady_clock::now() + kLastWords;
  for (console.flush(); console.backlog() > 0 && std::chrono::steady_clock::now() < give_up_at;
       console.flush()) {
    PollSet polls;
    console.watch(polls);
    polls.wake_at(give_up_at);
    polls.wait();
  }
}

}  // namespace lockstep::inline v0::launch
