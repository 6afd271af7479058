#include "lockstep/report/progress_bar.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0::progress_bar_test {

using std::chrono::milliseconds;

TEST(ProgressBar, RedrawsInPlaceAndNotTooOften) {
  std::string out;
  {
    ProgressBar bar(
        {.terminal = {.interactive = true}, .write = [&](std::string_view text) { out += text; }});
    const auto start = ProgressBar::Clock::now();
    bar.update({.label = "e", .done = 1}, start + milliseconds(10));
    EXPECT_EQ(out, "");
    bar.update({.label = "e", .done = 2}, start + milliseconds(150));
    bar.update({.label = "e", .done = 3}, start + milliseconds(200));
    bar.update({.label = "e", .done = 4}, start + milliseconds(300));
    EXPECT_EQ(out, "e 2\x1b[K\re 4\x1b[K\r");
    out.clear();
    bar.finish("epoch done");
    EXPECT_EQ(out, "epoch done\x1b[K\n");
    out.clear();
  }
  EXPECT_EQ(out, "");
}

TEST(ProgressBar, AnUnfinishedBarIsEnded) {
  std::string out;
  {
    ProgressBar bar(
        {.terminal = {.interactive = true}, .write = [&](std::string_view text) { out = text; }});
    bar.update({.label = "e", .done = 2}, ProgressBar::Clock::now() + milliseconds(150));
  }
  EXPECT_EQ(out, "\n");
}

TEST(ProgressBar, PlainLinesElsewhere) {
  std::string out;
  ProgressBar bar(
      {.terminal = {.interactive = false}, .write = [&](std::string_view text) { out += text; }});
  const auto start = ProgressBar::Clock::now();
  bar.update({.label = "e", .done = 1}, start + milliseconds(4000));
  bar.update({.label = "e", .done = 2}, start + milliseconds(6000));
  bar.update({.label = "e", .done = 3}, start + milliseconds(7000));
  bar.finish("epoch done");
  EXPECT_EQ(out, "e: 2\nepoch done\n");
}

}  // namespace lockstep::inline v0::progress_bar_test
