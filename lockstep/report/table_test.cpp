#include "lockstep/report/table.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0::table_test {

TEST(TextWidth, CountsColumns) {
  EXPECT_TRUE(has_chinese("a 今"));
  EXPECT_TRUE(has_chinese("㐀") && has_chinese("鿿"));
  for (const char* other : {"", "abc", "é、。，", "한글", "\xE4"})
    EXPECT_FALSE(has_chinese(other)) << other;
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("中文a"), 5u);
  EXPECT_EQ(display_width("e\xCC\x81"), 1u);  // e with a combining acute
  EXPECT_EQ(display_width("\xff\xfe"), 2u);   // no UTF-8
  EXPECT_EQ(display_width("\xE4\xB8"), 2u);   // cut in the middle
  EXPECT_EQ(fit_to_width("中文a", 3), "中");
  EXPECT_EQ(fit_to_width("abc", 2), "ab");
  EXPECT_EQ(fit_to_width("", 5), "");
}

TEST(Table, AlignsWideCharacters) {
  Table table({{"class", Align::kLeft}, {"n"}, {"accuracy"}});
  table.add({"高兴", "119", "57.2 %"});
  table.add({"x", "7", "100.0 %"});
  EXPECT_EQ(table.str(),
            "class    n  accuracy\n"
            "-----  ---  --------\n"
            "高兴   119    57.2 %\n"
            "x        7   100.0 %\n");
  EXPECT_THROW(table.add({"1"}), InvalidArgument);
}

TEST(Table, Numbers) {
  EXPECT_EQ(fixed(0.125, 1), "0.1");
  EXPECT_EQ(fixed(-2, 3), "-2.000");
  EXPECT_EQ(percent(0.98765, 2), "98.77 %");
  EXPECT_EQ(duration_text(0.04), "0.0 s");
  EXPECT_EQ(duration_text(9.96), "10 s");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(duration_text(-1), "?");
}

}  // namespace lockstep::inline v0::table_test
