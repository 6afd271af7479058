#include "lockstep/core/utf8.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::inline v0 {
namespace utf8_test {

TEST(Utf8, EveryCharacterThereAndBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code == 0xd800) code = 0xe000;
    std::string text;
    append_utf8(text, code);
    const Utf8Character read = utf8_character(text);
    ASSERT_EQ(read.code, code);
    ASSERT_EQ(read.length, text.size());
    ASSERT_TRUE(read.valid);
    ASSERT_FALSE(malformed_utf8(text));
    text.pop_back();
    if (!text.empty()) {
      ASSERT_EQ(malformed_utf8(text), 0U);
    }
  }
}

// The lengths are those of Python's bytes.decode(errors="replace").
TEST(Utf8, MalformedSequencesAreReplacedAsPythonDoes) {
  const auto lengths = [](std::string_view text) {
    std::vector<uint32_t> found;
    while (!text.empty()) {
      const Utf8Character character = utf8_character(text);
      EXPECT_EQ(character.valid, character.code != kReplacementCharacter);
      found.push_back(character.length);
      text.remove_prefix(character.length);
    }
    return found;
  };
  using Lengths = std::vector<uint32_t>;
  EXPECT_EQ(lengths("a\x80z"), (Lengths{1, 1, 1}));
  EXPECT_EQ(lengths("\xc0\xaf"), (Lengths{1, 1}));                // overlong
  EXPECT_EQ(lengths("\xe4\xbdz"), (Lengths{2, 1}));               // cut short
  EXPECT_EQ(lengths("\xed\xa0\x80"), (Lengths{1, 1, 1}));         // a surrogate
  EXPECT_EQ(lengths("\xe0\x80\x80"), (Lengths{1, 1, 1}));         // overlong
  EXPECT_EQ(lengths("\xf4\x90\x80\x80"), (Lengths{1, 1, 1, 1}));  // above U+10FFFF
  EXPECT_EQ(lengths("\xf0\x9f\x98"), (Lengths{3}));               // cut short
  EXPECT_EQ(lengths("\xf0\x9f\x98\x80\xff"), (Lengths{4, 1}));
  EXPECT_EQ(malformed_utf8("0123456789abcdef\xff"), 16U);
  EXPECT_EQ(malformed_utf8(""), std::nullopt);
}

TEST(Utf8, WhatATerminalWouldObeyIsShownAsAQuestionMark) {
  EXPECT_EQ(printable("a\x1b[31m\tb\n\x7f\r"), "a?[31m?b???");
  EXPECT_EQ(printable("\u009b2J\u202edcba\u2066"), "?2J?dcba?");
  EXPECT_EQ(printable("\x9b\xe5\xa4"), "??");  // not UTF-8; an old terminal obeys the first one
  EXPECT_EQ(printable("天 é\u00a0\u2030"), "天 é\u00a0\u2030");
  EXPECT_EQ(printable("天天天", 6), "天天...");
  EXPECT_EQ(printable("天天天", 7), "天天...");
  EXPECT_EQ(printable("天天", 6), "天天");
  EXPECT_EQ(printable(""), "");
}

}  // namespace utf8_test
}  // namespace lockstep::inline v0
