#include "lockstep/tokenizers/sentence_piece_bpe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/tokenizers/lm_tokenizer.h"

namespace lockstep::inline v0::tokenizers {
namespace sentence_piece_bpe_test {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

const Words kMerges = {"h e", "l l", "he ll", "hell o", "▁ hello", "▁ w", "▁w o", "▁ ▁"};

// Some bytes, the characters, and the results of the merges, as in Llama 2.
json toy() {
  json vocabulary = json::object();
  const auto add = [&](const std::string& token) { vocabulary[token] = vocabulary.size(); };
  for (const char* token : {"<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", "<0xE4>"})
    add(token);
  for (const char* token : {"▁", "h", "e", "l", "o", "w", "好"}) add(token);
  for (std::string merge : kMerges) add(merge.erase(merge.find(' '), 1));
  json added = json::array();
  for (const char* token : {"<unk>", "<s>", "</s>"})
    added.push_back({{"id", added.size()}, {"content", token}, {"special", true}});
  const json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", {{"type", "TemplateProcessing"}, {"single", json::array({begin, text})}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", kMerges}}}};
}

json with_metaspace(const char* scheme) {
  json file = toy();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}};
  return file;
}

SentencePieceBpe of(const json& file) {
  return SentencePieceBpe::parse_tokenizer_json(file.dump(), "t.json");
}

TEST(SentencePieceBpe, SpacesAreMarksAndWhatIsMissingIsBytes) {
  const SentencePieceBpe tokenizer = of(toy());
  EXPECT_EQ(tokenizer.tokenize("hello wo"), (Words{"▁hello", "▁wo"}));
  EXPECT_EQ(tokenizer.tokenize(" hello"), (Words{"▁", "▁hello"}));
  EXPECT_EQ(tokenizer.tokenize("好"), (Words{"▁", "好"}));
  EXPECT_EQ(tokenizer.tokenize("é\nh"), (Words{"▁", "<0xC3>", "<0xA9>", "<0x0A>", "h"}));
  // No byte of theirs is in the vocabulary.
  EXPECT_EQ(tokenizer.tokenize("xyzh"), (Words{"▁", "<unk>", "h"}));
  EXPECT_EQ(tokenizer.tokenize("</s>hello"), (Words{"</s>", "▁hello"}));
  EXPECT_EQ(tokenizer.tokenize(""), Words{});
  EXPECT_EQ(tokenizer.begin_of_text(), Ids{1});
  EXPECT_EQ(tokenizer.end_of_text_id(), 2);
}

TEST(SentencePieceBpe, ThereAndBack) {
  const SentencePieceBpe tokenizer = of(toy());
  for (const std::string text : {"hello  wo", "é好\n", " h"})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode(Ids{1, 4, 8}), "\ufffdh");  // half a character
  EXPECT_EQ(tokenizer.decode(Ids{1, 8}, false), "<s>h");
  EXPECT_THROW(tokenizer.decode(Ids{-1}), InvalidArgument);
}

TEST(SentencePieceBpe, APreTokenizerMayPutTheSpaces) {
  EXPECT_EQ(of(with_metaspace("always")).tokenize("</s>hello"), (Words{"</s>", "▁hello"}));
  EXPECT_EQ(of(with_metaspace("first")).tokenize("</s>hello"), (Words{"</s>", "hello"}));
  EXPECT_EQ(of(with_metaspace("first")).tokenize("hello</s>hello"),
            (Words{"▁hello", "</s>", "hello"}));
  EXPECT_EQ(of(with_metaspace("always")).tokenize(" hello"), Words{"▁hello"});
  EXPECT_EQ(of(with_metaspace("never")).tokenize("hello wo"), (Words{"hello", "▁wo"}));
}

TEST(SentencePieceBpe, IsFoundByItsFile) {
  const TestDirectory dir;
  dir.write("tokenizer.json", toy().dump());
  const LmTokenizer tokenizer = LmTokenizer::load(dir.path());
  EXPECT_EQ(tokenizer.encode("hello wo"), of(toy()).encode("hello wo"));
  EXPECT_EQ(tokenizer.begin_of_text(), Ids{1});
  EXPECT_EQ(tokenizer.end_of_text_id(), 2);
  EXPECT_EQ(tokenizer.files().at("tokenizer.json"), toy().dump());
}

TEST(SentencePieceBpe, OtherFilesAreRefusedInOneLine) {
  const auto with = [](const json& file, const char* pointer, const json& value) {
    json changed = file;
    changed[json::json_pointer(pointer)] = value;
    const std::string message = message_of<DataError>([&] { of(changed); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_EQ(with(toy(), "/normalizer", nullptr),
            "t.json: normalizer and pre_tokenizer say nothing of spaces");
  EXPECT_EQ(with(toy(), "/normalizer/normalizers/0/type", "NFC"),
            "t.json: normalizer.normalizers[0].type is \"NFC\"; give Prepend, the only one that is "
            "supported here");
  EXPECT_EQ(with(with_metaspace("first"), "/pre_tokenizer/split", true),
            "t.json: pre_tokenizer.split is true, which is not supported");
  EXPECT_EQ(with(with_metaspace("first"), "/pre_tokenizer/prepend_scheme", "last"),
            "t.json: pre_tokenizer.prepend_scheme is \"last\"; give always, first or never");
  EXPECT_EQ(with(toy(), "/decoder/decoders/1/type", "Metaspace"),
            "t.json: decoder.decoders[1].type is \"Metaspace\"; give ByteFallback, the only one "
            "that is supported here");
  EXPECT_EQ(with(toy(), "/model/ignore_merges", true),
            "t.json: model.ignore_merges is set, which is not supported");
  EXPECT_EQ(with(toy(), "/model/unk_token", "?"),
            "t.json: model.unk_token is \"?\", which the vocabulary lacks");
  EXPECT_EQ(with(toy(), "/model/merges/0", "h x"),
            "t.json: merge 0 needs the token \"x\", which the vocabulary lacks");
  EXPECT_EQ(with(toy(), "/post_processor/single/0/SpecialToken/id", "<b>"),
            "t.json: post_processor has the token \"<b>\", which the vocabulary lacks");
}

}  // namespace sentence_piece_bpe_test
}  // namespace lockstep::inline v0::tokenizers
