#include "lockstep/tokenizers/characters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::tokenizers::characters_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Characters, AreThoseOfTheText) {
  const Characters characters = Characters::of("天 banana\n天", "t.txt");
  EXPECT_EQ(characters.vocabulary_size(), 6);  // newline, space, a, b, n, the sky
  EXPECT_THAT(characters.encode("ban 天"), ElementsAre(3, 2, 4, 1, 5));
  EXPECT_EQ(characters.decode(characters.encode("nab\n天")), "nab\n天");
  EXPECT_EQ(characters.encode("").size(), 0u);
}

TEST(Characters, FilesAreReadBack) {
  const TestDirectory dir;
  const Characters characters = Characters::of("a\"\\\n\té天\U0001F600", "t.txt");
  for (const auto& [name, text] : characters.files()) dir.write(name, text);
  const Characters again = Characters::load(dir.path());
  EXPECT_EQ(again.files(), characters.files());
  EXPECT_EQ(again.encode("天a\""), characters.encode("天a\""));
}

TEST(Characters, WhatIsWrongIsNamed) {
  const Characters characters = Characters::of("ab\n", "t.txt");
  const auto line = [](const auto& run) { return message_of<DataError>(run); };
  EXPECT_THAT(line([&] { characters.encode("a\nbx"); }),
              HasSubstr("line 2 has \"x\", a character that the vocabulary lacks; it has 3: ab"));
  EXPECT_THAT(line([&] { characters.encode("a\xff"); }), HasSubstr("no UTF-8"));
  EXPECT_THAT(line([] { Characters::of("", "t.txt"); }), HasSubstr("t.txt: is empty"));
  EXPECT_THAT(line([] { Characters::of("a\n\xff", "t.txt"); }), HasSubstr("line 2 is not UTF-8"));
  for (const char* json : {"", "[]", "{}", R"({"characters": []})", R"({"characters": ["ab"]})",
                           R"({"characters": ["a", "a"]})", R"({"characters": ["a", 3]})",
                           R"({"characters": [""]})"}) {
    const std::string text = line([&] { Characters::parse(json, "c.json"); });
    EXPECT_THAT(text, ::testing::StartsWith("c.json: ")) << json;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  EXPECT_THROW(characters.decode(std::vector<int32_t>{3}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::tokenizers::characters_test
