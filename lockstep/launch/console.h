// Console: one of the agent's own output streams, onto which the ranks' pieces of output are put
// whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::launch {

// Decides which bytes a piece becomes, given what stands there already. Pure.
//
// A line that a rank has not finished (a progress bar, a prompt) is closed before another rank's
// output: on a terminal a progress bar is wiped, anything else gets its line's end.
class LineJoiner {
 public:
  explicit LineJoiner(bool terminal) : terminal_(terminal) {}

  // `source` tells streams apart; `prefix` stands before each line.
  std::string join(int source, const Piece& piece, std::string_view prefix);
  // What ends an unfinished line of any source.
  std::string close();

 private:
  bool terminal_;
  int open_source_ = -1;  // whose unfinished piece stands at the end; -1: none
  Piece::End open_end_ = Piece::End::kLine;
  bool open_bar_ = false;  // that piece is a progress bar's
};

// Writes to a descriptor that it does not own, without ever blocking on it: what it cannot take yet
// is kept.
class Console {
 public:
  explicit Console(int fd);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  void put(int source, const Piece& piece, std::string_view prefix);
  void close_line();
  // Writes as much as the descriptor takes now.
  void flush();
  // Has `polls` wake when the descriptor takes more of what is kept; the caller flushes then.
  void watch(PollSet& polls) const;
  size_t backlog() const { return waiting_.size() - written_; }
  // It cannot be written: its reader is gone, or the disk is full. Everything since was dropped.
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

// Writes what both consoles have kept. A reader may be slow (a pager): it is waited for until a
// signal comes, which is taken and dropped; or for kLastWords, where this process was told to stop. So only for when
// nothing but the end is left to come.
inline constexpr std::chrono::seconds kLastWords{5};
// False: something is left.
bool write_rest(Console& out, Console& err, SignalPipe& signals, bool stopped);

// Writes a last line behind that, for kLastWords at most: whoever reads `fd` may not read on.
void write_last_words(int fd, std::string_view text);

}  // namespace lockstep::launch
