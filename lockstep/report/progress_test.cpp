#include "lockstep/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/report/text_width.h"

namespace lockstep::inline v0::progress_test {

using ::testing::HasSubstr;
using ::testing::Not;

Progress sample() {
  return {.label = "epoch 3/10",
          .done = 212,
          .total = 469,
          .loss = 0.12345,
          .samples_per_s = 9800,
          .seconds_left = 42};
}

TEST(Progress, EverythingFitsOnAWideTerminal) {
  EXPECT_EQ(draw_progress(sample(), {.unicode = false, .columns = 80}),
            "epoch 3/10 [########..........] 212/469  loss 0.1235  0:42 left  9800 samples/s");
  const std::string line = draw_progress(sample(), {.unicode = true, .columns = 80});
  EXPECT_THAT(line, HasSubstr("▕"));
  EXPECT_EQ(display_width(line), 79u);
}

TEST(Progress, NeverWiderThanTheTerminal) {
  for (int columns = 2; columns < 140; ++columns) {
    for (const bool unicode : {false, true}) {
      for (const int64_t done : {0, 1, 468, 469, 500}) {
        Progress progress = sample();
        progress.done = done;
        progress.label = "第 3 轮";
        EXPECT_LT(display_width(draw_progress(progress, {.unicode = unicode, .columns = columns})),
                  static_cast<size_t>(columns));
      }
    }
  }
}

TEST(Progress, LeavesOutTheLeastImportantFirst) {
  const std::string line = draw_progress(sample(), {.unicode = false, .columns = 56});
  EXPECT_THAT(line, HasSubstr("loss"));
  EXPECT_THAT(line, Not(HasSubstr("samples/s")));
}

TEST(Progress, PlainLine) {
  EXPECT_EQ(progress_line(sample()),
            "epoch 3/10: 212/469 (45 %), loss 0.1235, 0:42 left, 9800 samples/s");
  EXPECT_EQ(progress_line({.label = "x", .done = 3}), "x: 3");
}

TEST(FindTerminal, ReadsTheEnvironment) {
  const auto find = [](std::map<std::string, std::string, std::less<>> values) {
    return find_terminal(-1, [values](std::string_view name) -> std::optional<std::string> {
      const auto it = values.find(name);
      return it == values.end() ? std::nullopt : std::optional(it->second);
    });
  };
  EXPECT_FALSE(find({}).interactive);
  EXPECT_EQ(find({}).columns, 80);
  EXPECT_TRUE(find({{"LOCKSTEP_TTY", "1"}}).interactive);
  EXPECT_FALSE(find({{"LOCKSTEP_TTY", "1"}, {"TERM", "dumb"}}).interactive);
  EXPECT_EQ(find({{"LOCKSTEP_COLUMNS", "120"}, {"COLUMNS", "90"}}).columns, 120);
  EXPECT_EQ(find({{"LOCKSTEP_COLUMNS", "-4"}, {"COLUMNS", "90"}}).columns, 90);
  EXPECT_TRUE(find({{"LANG", "de_DE.UTF-8"}}).unicode);
  EXPECT_FALSE(find({{"LANG", "de_DE.UTF-8"}, {"LC_ALL", "C"}}).unicode);
  EXPECT_FALSE(find({}).unicode);
}

}  // namespace lockstep::inline v0::progress_test
