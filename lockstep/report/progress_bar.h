// ProgressBar: shows progress on stderr, redrawn in place on a terminal, as a plain line now and
// then elsewhere.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/report/progress.h"
#include "lockstep/report/terminal.h"

namespace lockstep {

struct ProgressBarOptions {
  Terminal terminal = {};
  std::chrono::milliseconds redraw{100};       // at most so often on a terminal
  std::chrono::milliseconds plain_line{5000};  // at most so often elsewhere
  std::function<void(std::string_view)> write =
      {};  // where text goes; default: stderr, one write(2) a call
};

// One thread at a time. Owned by the rank that shows (rank 0).
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(ProgressBarOptions options);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // Leaves an unfinished line behind as it is, ended by a newline.
  ~ProgressBar();

  // Shows `progress` if it is time to. `now` is for tests.
  void update(const Progress& progress, Clock::time_point now = Clock::now());
  // Takes the bar away and writes `line` in its place.
  void finish(std::string_view line);

 private:
  void write(std::string_view text) const;

  ProgressBarOptions options_;
  Clock::time_point last_;
  bool shown_ = false;  // a bar stands on the current line
};

}  // namespace lockstep
