// FirstLines: holds a rank's first lines of stderr back for a moment, so that a complaint which all
// ranks make in the same words (a wrong option, a missing file) and then exit with 2 is shown once.
// Pure: it is told the time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/line_splitter.h"

namespace lockstep::launch {

class FirstLines {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Holds the first `count` lines, each for kHold at most. 0: holds nothing.
  explicit FirstLines(int count) : left_(count) {}
  static constexpr auto kHold = std::chrono::milliseconds(150);
  static constexpr int kCount = 8;

  // Takes pieces as they come; returns those to show now. Anything but a whole line ends the
  // holding.
  std::vector<Piece> pass(const std::vector<Piece>& pieces, Time now);
  // What has been held long enough.
  std::vector<Piece> on_time(Time now);
  std::optional<Time> next_time() const;
  // Whatever is held, now; nothing if it repeats the end of the text given to do_not_repeat().
  std::vector<Piece> release();

  // The first lines, those shown and those held.
  std::string text() const { return shown_ + held_text(); }
  const std::string& shown() const { return shown_; }
  std::string held_text() const;
  // Another rank's first lines: what is held is dropped instead of shown if `text` ends with it.
  void do_not_repeat(std::string text) { other_ = std::move(text); }

 private:
  int left_;
  Time held_since_{};
  std::vector<Piece> held_;
  std::string shown_;
  std::string other_;
};

}  // namespace lockstep::launch
