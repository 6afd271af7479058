#include "lockstep/report/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/report/table.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0 {
namespace {

double fraction_of(const Progress& progress) {
  if (progress.total <= 0) return 0;
  return std::clamp(static_cast<double>(progress.done) / static_cast<double>(progress.total), 0.0,
                    1.0);
}

std::string count_text(const Progress& progress) {
  if (progress.total <= 0) return std::to_string(progress.done);
  const std::string total = std::to_string(progress.total);
  std::string done = std::to_string(progress.done);
  if (done.size() < total.size()) done.insert(0, total.size() - done.size(), ' ');
  return done + "/" + total;
}

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e7) return "?:??";
  const auto whole = std::llround(seconds);
  const auto two = [](int64_t value) {
    std::string text = std::to_string(value);
    if (text.size() < 2) text.insert(text.begin(), '0');
    return text;
  };
  if (whole < 3600) return std::to_string(whole / 60) + ":" + two(whole % 60);
  return std::to_string(whole / 3600) + ":" + two(whole % 3600 / 60) + ":" + two(whole % 60);
}

// The facts after the bar, the most important ones first.
std::vector<std::string> facts(const Progress& progress) {
  std::vector<std::string> parts;
  if (progress.loss) parts.push_back("loss " + fixed(*progress.loss, 4));
  if (progress.seconds_left) parts.push_back(clock_text(*progress.seconds_left) + " left");
  if (progress.samples_per_s)
    parts.push_back(fixed(*progress.samples_per_s, 0) + " " + std::string(progress.counted) + "/s");
  return parts;
}

std::string bar(double fraction, size_t cells, bool unicode) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<size_t>(std::lround(fraction * static_cast<double>(cells) * 8));
  std::string text;
  if (!unicode) {
    const size_t full = eighths / 8;
    return std::string(full, '#') + std::string(cells - full, '.');
  }
  for (size_t i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  return text + std::string(cells - (eighths + 7) / 8, ' ');
}

}  // namespace

std::string draw_progress(const Progress& progress, const Terminal& terminal) {
  constexpr size_t kShortestBar = 8, kLongestBar = 40;
  const size_t columns = static_cast<size_t>(std::max(terminal.columns, 2)) - 1;
  const std::string count = count_text(progress);
  std::string tail;
  size_t used = display_width(progress.label) + 1 + count.size() + 1;
  const size_t room_for_bar = progress.total > 0 ? kShortestBar + 3 : 0;
  for (const std::string& fact : facts(progress)) {
    if (used + room_for_bar + fact.size() + 2 > columns) break;
    tail += "  " + fact;
    used += fact.size() + 2;
  }
  std::string line = progress.label + " ";
  if (progress.total > 0 && used + room_for_bar <= columns) {
    const size_t cells = std::min(kLongestBar, columns - used - 2);
    line += (terminal.unicode ? "▕" : "[") + bar(fraction_of(progress), cells, terminal.unicode) +
            (terminal.unicode ? "▏ " : "] ");
  }
  line += count + tail;
  return std::string(fit_to_width(line, columns));
}

std::string progress_line(const Progress& progress) {
  std::string text = progress.label + ": " + std::to_string(progress.done);
  if (progress.total > 0) {
    text.append("/").append(std::to_string(progress.total));
    text.append(" (").append(fixed(100 * fraction_of(progress), 0)).append(" %)");
  }
  for (const std::string& fact : facts(progress)) text += ", " + fact;
  return text;
}

}  // namespace lockstep::inline v0
