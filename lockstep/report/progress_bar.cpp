#include "lockstep/report/progress_bar.h"

#include <unistd.h>

#include <utility>

#include "lockstep/core/log.h"

namespace lockstep::inline v0 {
namespace {

// Erases the rest of the line and leaves the cursor at its start: a bar ends with a line end, so a
// program that passes output on line by line need not wait for the next one.
constexpr std::string_view kEndOfBar = "\x1b[K\r";

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(std::move(options)), last_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (!shown_) return;
  try {
    write("\n");
  } catch (...) {
  }
}

void ProgressBar::update(const Progress& progress, Clock::time_point now) {
  const auto interval = options_.terminal.interactive ? options_.redraw : options_.plain_line;
  if (now - last_ < interval) return;
  last_ = now;
  if (!options_.terminal.interactive) {
    write(progress_line(progress) + "\n");
    return;
  }
  write(draw_progress(progress, options_.terminal).append(kEndOfBar));
  shown_ = true;
}

void ProgressBar::finish(std::string_view line) {
  std::string text(line);
  if (shown_) text += "\x1b[K";
  write(text += '\n');
  shown_ = false;
}

void ProgressBar::write(std::string_view text) const {
  if (options_.write) {
    options_.write(text);
  } else {
    write_all(STDERR_FILENO, text);
  }
}

}  // namespace lockstep::inline v0
