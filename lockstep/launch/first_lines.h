// FirstLines: holds a rank's first lines of stderr back for a moment, so that a complaint that all
// ranks make in the same words (a wrong option, a missing file) before they exit with 2 is shown
// once. Pure: it is told the time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/line_splitter.h"

namespace lockstep::inline v0::launch {

class FirstLines {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Holds the first `count` lines, each for kHold at most. 0: holds nothing.
  explicit FirstLines(int count) : left_(count) {}
  static constexpr auto kHold = std::chrono::milliseconds(150);
  static constexpr int kCount = 8;

  // Takes pieces as they arrive and returns those to show now. Anything but a whole line ends the
  // holding.
  std::vector<Piece> pass(const std::vector<Piece>& pieces, Time now);
  // The pieces that have been held long enough.
  std::vector<Piece> on_time(Time now);
  std::optional<Time> next_time() const;
  // All held pieces; none if they repeat the end of the text given to do_not_repeat().
  std::vector<Piece> release();

  // The first lines, those shown and those held.
  std::string text() const { return shown_ + held_text(); }
  const std::string& shown() const { return shown_; }
  std::string held_text() const;
  // Another rank's first lines: the held ones are dropped instead of shown if `text` ends with
  // them.
  void do_not_repeat(std::string text) { other_ = std::move(text); }

 private:
  int left_;
  Time held_since_{};
  std::vector<Piece> held_;
  std::string shown_;
  std::string other_;
};

}  // namespace lockstep::inline v0::launch
