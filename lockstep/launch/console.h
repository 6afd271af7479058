// Console: one of the agent's own output streams; the ranks' pieces of output are written to it
// whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::inline v0::launch {

// Decides the bytes of a piece, given the output before it. Pure.
//
// An unfinished line of a rank (a progress bar, a prompt) is closed before another rank's output:
// on a terminal a progress bar is wiped, and anything else gets its line's end.
class LineJoiner {
 public:
  explicit LineJoiner(bool terminal) : terminal_(terminal) {}

  // `source` distinguishes streams; `prefix` precedes each line.
  std::string join(int source, const Piece& piece, std::string_view prefix);
  // The bytes that end an unfinished line of any source.
  std::string close();

 private:
  bool terminal_;
  int open_source_ = -1;  // the source of the unfinished piece at the end; -1: none
  Piece::End open_end_ = Piece::End::kLine;
  bool open_bar_ = false;  // that piece belongs to a progress bar
};

// Writes to a descriptor that it does not own, without ever blocking on it: output that it cannot
// take yet is kept.
class Console {
 public:
  explicit Console(int fd);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  void put(int source, const Piece& piece, std::string_view prefix);
  void close_line();
  // Writes as much as the descriptor takes now.
  void flush();
  // Makes `polls` wake when the descriptor takes more of the kept output; the caller flushes then.
  void watch(PollSet& polls) const;
  size_t backlog() const { return waiting_.size() - written_; }
  // Whether it can no longer be written: its reader is gone, or the disk is full. Output since then
  // was dropped.
  bool broken() const { return error_ != 0; }
  int error() const { return error_; }  // errno; 0: none

 private:
  int fd_;
  bool terminal_;
  int error_ = 0;
  LineJoiner joiner_;
  std::string waiting_;
  size_t written_ = 0;
};

// Writes the output that both consoles have kept. For a slow reader (a pager) it waits until a
// signal arrives, which is taken and dropped, or for kLastWords where this process was told to
// stop. Call it only when nothing but the end remains.
inline constexpr std::chrono::seconds kLastWords{5};
// Returns false if output is left.
bool write_rest(Console& out, Console& err, SignalPipe& signals, bool stopped);

// Writes a last line after the rest, for kLastWords at most, since the reader of `fd` may have
// stopped reading.
void write_last_words(int fd, std::string_view text);

}  // namespace lockstep::inline v0::launch
