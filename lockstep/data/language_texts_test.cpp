#include "lockstep/data/language_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::data::language_texts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LanguageTexts, TheLastTenthOfATextIsForEvaluation) {
  const TestDirectory dir;
  dir.write("poem.txt", "今天bcdefghijk天lmnopqr");  // 20 characters
  for (const auto& path : {dir.path(), dir.path() / "poem.txt"}) {
    const LanguageTexts texts = language_texts(path);
    EXPECT_THAT(texts.train, ElementsAre("今天bcdefghijk天lmnop"));
    EXPECT_THAT(texts.dev, ElementsAre("qr"));
    EXPECT_TRUE(texts.dev_of_train);
    EXPECT_FALSE(texts.rows);
  }
  // If the last tenth begins within a character of several bytes, the character stays whole.
  dir.write("poem.txt", "abcdefghi天");
  EXPECT_THAT(language_texts(dir.path()).dev, ElementsAre("天"));
}

TEST(LanguageTexts, RowsAreTexts) {
  const TestDirectory dir;
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += "{\"text\": \"t" + std::to_string(i) + "\", \"label\": 1}\n";
  dir.write("train.jsonl", rows);
  const LanguageTexts texts = language_texts(dir.path());
  EXPECT_TRUE(texts.rows);
  EXPECT_EQ(texts.train.size(), 18u);
  EXPECT_EQ(texts.train.front(), "t0\n");
  EXPECT_THAT(texts.dev, ElementsAre("t9\n", "t19\n"));
  EXPECT_EQ(language_texts_of_file(dir.path() / "train.jsonl").train.size(), 20u);
}

TEST(LanguageTexts, FilesOfTheirOwnAreTakenWhole) {
  const TestDirectory dir;
  dir.write("train.txt", "abc");
  dir.write("valid.txt", "d");
  const LanguageTexts texts = language_texts(dir.path());
  EXPECT_THAT(texts.train, ElementsAre("abc"));
  EXPECT_THAT(texts.dev, ElementsAre("d"));
  EXPECT_FALSE(texts.dev_of_train);
}

TEST(LanguageTexts, TheDevSetHasAnyOfItsNames) {
  for (const char* name : {"dev", "validation", "valid", "val", "eval"}) {
    const TestDirectory dir;
    dir.write("train.txt", "abc");
    dir.write(std::string(name) + ".txt", "d");
    dir.write("test.txt", "e");
    dir.write("notes.txt", "nothing of the kind");
    const LanguageTexts texts = language_texts(dir.path());
    EXPECT_THAT(texts.dev, ElementsAre("d")) << name;
    EXPECT_FALSE(texts.dev_of_train);
    EXPECT_THAT(texts.unread, ElementsAre("test.txt"));
  }
}

TEST(LanguageTexts, AByteOrderMarkIsNoPartOfTheText) {
  const TestDirectory dir;
  dir.write("train.txt",
            "\xef\xbb\xbf"
            "abc");
  dir.write("dev.txt", "\xef\xbb\xbf");
  EXPECT_THAT(language_texts_of_file(dir / "train.txt").train, ElementsAre("abc"));
  EXPECT_THAT(message_of<DataError>([&] { language_texts(dir.path()); }),
              HasSubstr("dev.txt: is empty"));
}

TEST(LanguageTexts, WhatIsWrongIsNamed) {
  const TestDirectory dir;
  const auto error = [&](const std::string& name) {
    return message_of<DataError>([&] { language_texts(dir.path() / name); });
  };
  EXPECT_THAT(error("none.txt"), HasSubstr("none.txt: does not exist"));
  EXPECT_THAT(message_of<DataError>([&] { language_texts(dir.path()); }), HasSubstr("train.txt"));
  dir.write("a.txt", "");
  EXPECT_THAT(error("a.txt"), HasSubstr("a.txt: is empty"));
  dir.write("a.txt", "x");
  EXPECT_THAT(error("a.txt"), HasSubstr("too short"));
  dir.write("a.txt", "line\nbroken \xff line\n");
  EXPECT_THAT(error("a.txt"), HasSubstr("line 2"));
  dir.write("b.txt", "x");
  EXPECT_THAT(message_of<DataError>([&] { language_texts(dir.path()); }), HasSubstr("several"));
  dir.write("train.txt", "abc");
  dir.write("dev.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { language_texts(dir.path()); }), HasSubstr("kind"));
  dir.write("few.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_THAT(error("few.jsonl"), HasSubstr("too short"));
}

}  // namespace
}  // namespace lockstep::inline v0::data::language_texts_test
