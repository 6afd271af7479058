// One line of progress, as text. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0 {

// How far a training has come.
struct Progress {
  std::string label;  // "epoch 3/10"
  int64_t done = 0;   // of `total` steps; total 0: unknown
  int64_t total = 0;
  std::optional<double> loss = {};
  std::optional<double> samples_per_s = {};
  std::string_view counted = "samples";  // the unit of the rate: samples per second
  std::optional<double> seconds_left = {};
};

// The line without its newline, at most terminal.columns - 1 columns wide:
//   epoch 3/10 ████▌     212/469  loss 0.1234  0:42 left  9800 samples/s
// Parts that do not fit are left out, the least important ones first; '#' replaces the blocks if
// the terminal has no unicode.
LOCKSTEP_API std::string draw_progress(const Progress& progress, const Terminal& terminal);

// The same without a bar, for logs:
//   epoch 3/10: 212/469 (45 %), loss 0.1234, 0:42 left, 9800 samples/s
LOCKSTEP_API std::string progress_line(const Progress& progress);

}  // namespace lockstep::inline v0
