// ProgressBar: shows progress on stderr: redrawn in place on a terminal, and as a plain line now
// and then elsewhere.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/report/progress.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0 {

// The options of a ProgressBar.
struct ProgressBarOptions {
  Terminal terminal = {};                      // where it is drawn
  std::chrono::milliseconds redraw{100};       // the shortest interval on a terminal
  std::chrono::milliseconds plain_line{5000};  // the shortest interval elsewhere
  // Receives the text; empty: stderr, with one write(2) per call.
  std::function<void(std::string_view)> write = {};
};

// Owned by the rank that shows progress (rank 0).
// Thread-safety: one thread at a time.
class LOCKSTEP_API ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(ProgressBarOptions options);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // Leaves an unfinished line as it is, followed by a newline.
  ~ProgressBar();

  // Shows `progress` if enough time has passed. `now` is for tests.
  void update(const Progress& progress, Clock::time_point now = Clock::now());
  // Removes the bar and writes `line` in its place.
  void finish(std::string_view line);

 private:
  void write(std::string_view text) const;

  ProgressBarOptions options_;
  Clock::time_point last_;
  bool shown_ = false;  // the current line shows a bar
};

}  // namespace lockstep::inline v0
