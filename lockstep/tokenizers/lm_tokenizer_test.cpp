#include "lockstep/tokenizers/lm_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/byte_alphabet.h"

namespace lockstep::inline v0::tokenizers::lm_tokenizer_test {
namespace {

using ::testing::HasSubstr;

// All bytes, "ab", and the end of a text.
std::string vocabulary() {
  nlohmann::json ids = nlohmann::json::object();
  const auto add = [&](const std::string& token) { ids[token] = ids.size(); };
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, ByteAlphabet().character(static_cast<uint8_t>(byte)));
    add(token);
  }
  add("ab");
  add("<|endoftext|>");
  return ids.dump();
}

void expect_same_from_files(const LmTokenizer& tokenizer, const std::string& text) {
  const TestDirectory dir;
  for (const auto& [name, bytes] : tokenizer.files()) dir.write(name, bytes);
  const LmTokenizer again = LmTokenizer::load(dir.path());
  EXPECT_EQ(again.files(), tokenizer.files());
  EXPECT_EQ(again.encode(text), tokenizer.encode(text));
  EXPECT_EQ(again.decode(again.encode(text)), text);
  EXPECT_EQ(again.vocabulary_size(), tokenizer.vocabulary_size());
  EXPECT_EQ(again.end_of_text_id(), tokenizer.end_of_text_id());
}

TEST(LmTokenizer, OfEitherKindComesBackFromItsFiles) {
  expect_same_from_files(LmTokenizer(Characters::of("天ab\n", "t")), "ab天\nba");
  const TestDirectory dir;
  dir.write("vocab.json", vocabulary());
  dir.write("merges.txt", "a b\n");
  const LmTokenizer bpe = LmTokenizer::load(dir.path());
  EXPECT_EQ(bpe.encode("abab").size(), 2u);
  EXPECT_EQ(bpe.end_of_text_id(), 257);
  EXPECT_FALSE(LmTokenizer(Characters::of("a", "t")).end_of_text_id());
  expect_same_from_files(bpe, "ab 天\n");
}

TEST(LmTokenizer, WhatIsWrongIsNamed) {
  const TestDirectory dir;
  const auto error = [&](const std::string& name) {
    return message_of<DataError>([&] { LmTokenizer::load(dir.path() / name); });
  };
  EXPECT_THAT(error(""), HasSubstr("has neither characters.json"));
  EXPECT_THAT(error("tokenizer.json"), HasSubstr("tokenizer.json"));
  dir.write("tokenizer.json", "{");
  EXPECT_THAT(error(""), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace lockstep::inline v0::tokenizers::lm_tokenizer_test
