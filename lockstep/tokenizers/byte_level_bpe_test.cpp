#include "lockstep/tokenizers/byte_level_bpe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/byte_alphabet.h"

namespace lockstep::inline v0::tokenizers {
namespace byte_level_bpe_test {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

const Words kMerges = {"h e",  "l l", "he ll", "hell o", "Ġ w",
                       "Ġw o", "a b", "ab ab", "b a",    "' s"};

// All bytes, the results of the merges, <|endoftext|>.
json vocabulary() {
  json ids = json::object();
  const auto add = [&](const std::string& token) { ids[token] = ids.size(); };
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, ByteAlphabet().character(static_cast<uint8_t>(byte)));
    add(token);
  }
  for (std::string merge : kMerges) add(merge.erase(merge.find(' '), 1));
  add("<|endoftext|>");
  return ids;
}

std::string merge_lines() {
  std::string lines = "#version: 0.2\n";
  for (const std::string& merge : kMerges) lines += merge + "\n";
  return lines;
}

ByteLevelBpe toy(const ByteLevelBpeOptions& options = {}) {
  return ByteLevelBpe::parse_files(vocabulary().dump(), merge_lines(), options);
}

TEST(ByteLevelBpe, TheAlphabetIsGpt2s) {
  const ByteAlphabet alphabet;
  EXPECT_EQ(alphabet.character('A'), U'A');
  EXPECT_EQ(alphabet.character(' '), 0x120U);
  EXPECT_EQ(alphabet.character('\n'), 0x10aU);
  EXPECT_EQ(alphabet.character(0xad), 0x143U);
  EXPECT_EQ(alphabet.bytes_of("Ġé"), " \xe9");
  EXPECT_EQ(alphabet.bytes_of("好"), std::nullopt);
}

TEST(ByteLevelBpe, MergesByRankFromTheLeft) {
  EXPECT_EQ(toy().tokenize("hello hell"), (Words{"hello", "Ġ", "hell"}));
  EXPECT_EQ(toy().tokenize("hello wo"), (Words{"hello", "Ġwo"}));
  EXPECT_EQ(toy().tokenize("ababab"), (Words{"abab", "ab"}));
  EXPECT_EQ(toy().tokenize("bab"), (Words{"b", "ab"}));  // "a b" comes before "b a"
  EXPECT_EQ(toy().tokenize(""), Words{});
}

TEST(ByteLevelBpe, LongWordsAreMergedAlike) {
  std::string word;
  Words expected;
  for (int i = 0; i < 5000; ++i) {
    word += "ababbhello";
    for (const char* piece : {"abab", "b", "hello"}) expected.push_back(piece);
  }
  EXPECT_EQ(toy().tokenize(word), expected);
  EXPECT_EQ(toy().encode(std::string(300'000, 'a')).size(), 300'000U);
  EXPECT_EQ(toy().encode(std::string(300'000, ' ')).size(), 300'000U);
}

TEST(ByteLevelBpe, SplitsWordsAsGpt2Does) {
  // A contraction directly after a word; after a space its sign is punctuation.
  EXPECT_EQ(toy().tokenize("it's 'sa"), (Words{"i", "t", "'s", "Ġ", "'", "s", "a"}));
  // Runs of spaces leave their last one to the word.
  EXPECT_EQ(toy().tokenize("a  wo"), (Words{"a", "Ġ", "Ġwo"}));
  EXPECT_EQ(toy().tokenize("a\n\nwo  "), (Words{"a", "Ċ", "Ċ", "w", "o", "Ġ", "Ġ"}));
  EXPECT_EQ(toy().tokenize("ab1ab"), (Words{"ab", "1", "ab"}));
  EXPECT_EQ(toy().tokenize("he.ll"), (Words{"he", ".", "ll"}));
  EXPECT_EQ(toy().tokenize("é"), (Words{"Ã", "©"}));
}

TEST(ByteLevelBpe, PrefixSpaceAndSpecialTokens) {
  EXPECT_EQ(toy({.add_prefix_space = true}).tokenize("wo"), Words{"Ġwo"});
  EXPECT_EQ(toy({.add_prefix_space = true}).tokenize(" wo"), Words{"Ġwo"});
  const ByteLevelBpe tokenizer = toy();
  EXPECT_EQ(tokenizer.tokenize("ab<|endoftext|>ab"), (Words{"ab", "<|endoftext|>", "ab"}));
  EXPECT_EQ(tokenizer.end_of_text_id(), 266);
  const Ids ids = tokenizer.encode("hello<|endoftext|> wo");
  EXPECT_EQ(tokenizer.decode(ids), "hello wo");
  EXPECT_EQ(tokenizer.decode(ids, false), "hello<|endoftext|> wo");
}

TEST(ByteLevelBpe, ThereAndBack) {
  for (const std::string text : {"hello  wörld\n\t你好 \U0001F600", "a\0b", " "})
    EXPECT_EQ(toy().decode(toy().encode(text)), text);
  EXPECT_EQ(toy().decode(toy().encode("a\xff\xe4\xbdz")), "a\ufffd\ufffdz");
  EXPECT_EQ(toy().decode(Ids{0xe4}), "\ufffd");  // half a character
  EXPECT_THROW(toy().decode(Ids{267}), InvalidArgument);
  EXPECT_THROW(toy().decode(Ids{-1}), InvalidArgument);
  EXPECT_EQ(toy().decode(Ids{}), "");
}

TEST(ByteLevelBpe, BatchesAreTheSameOnAnyNumberOfThreads) {
  Words texts;
  for (int i = 0; i < 2000; ++i) texts.push_back("hello ab" + std::to_string(i % 37) + " wo");
  const auto one = toy().encode_batch(texts, 1);
  EXPECT_EQ(toy().encode_batch(texts, 4), one);
  for (size_t i = 0; i < texts.size(); i += 97) EXPECT_EQ(one[i], toy().encode(texts[i]));
}

json toy_json() {
  json model = {{"type", "BPE"},          {"dropout", nullptr},
                {"unk_token", nullptr},   {"fuse_unk", false},
                {"ignore_merges", false}, {"continuing_subword_prefix", ""},
                {"vocab", vocabulary()},  {"merges", kMerges}};
  return {{"added_tokens",
           {{{"id", 266}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", {{"type", "ByteLevel"}, {"trim_offsets", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", model}};
}

TEST(ByteLevelBpe, LoadsBothForms) {
  const TestDirectory dir;
  EXPECT_NE(message_of<DataError>([&] {
              ByteLevelBpe::load(dir.path());
            }).find("has neither tokenizer.json nor vocab.json with merges.txt"),
            std::string::npos);
  dir.write("vocab.json", vocabulary().dump());
  dir.write("merges.txt", merge_lines());
  const std::string text = "hello<|endoftext|> wo 'sababab";
  EXPECT_EQ(ByteLevelBpe::load(dir.path()).encode(text), toy().encode(text));
  dir.write("tokenizer.json", toy_json().dump());
  EXPECT_EQ(ByteLevelBpe::load(dir.path()).encode(text), toy().encode(text));
  json pairs = toy_json();
  for (json& merge : pairs["model"]["merges"]) {
    const std::string both = merge;
    merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
  }
  EXPECT_EQ(ByteLevelBpe::parse_tokenizer_json(pairs.dump(), "t").encode(text), toy().encode(text));
}

const char* const kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Its own words, whole ones that no merge makes, and the tokens before and after a text.
json llama3_json() {
  json file = toy_json();
  json& model = file["model"];
  const auto add = [&](const std::string& token) { model["vocab"][token] = model["vocab"].size(); };
  model["vocab"].erase("<|endoftext|>");
  for (const char* token : {"Ġhello", "123", "'S", ".ĊĊ", "ĠĠ"}) add(token);
  model["ignore_merges"] = true;
  const auto id = model["vocab"].size();
  file["added_tokens"] = {{{"id", id}, {"content", "<|begin_of_text|>"}, {"special", true}},
                          {{"id", id + 1}, {"content", "<|end_of_text|>"}, {"special", true}}};
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", kLlama3}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             begin = {{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"}, {"single", json::array({begin, text})}}}}};
  return file;
}

TEST(ByteLevelBpe, Llama3sWords) {
  const ByteLevelBpe tokenizer = ByteLevelBpe::parse_tokenizer_json(llama3_json().dump(), "t");
  const auto words = [&](const char* text) { return tokenizer.tokenize(text); };
  EXPECT_EQ(words(" hello"), Words{"Ġhello"});  // whole, though "Ġ" and "hello" do not merge
  EXPECT_EQ(words("12345"), (Words{"123", "4", "5"}));  // three digits at most
  EXPECT_EQ(words("ab'Sab"), (Words{"ab", "'S", "ab"}));
  EXPECT_EQ(words(".\n\nab"), (Words{".ĊĊ", "ab"}));  // line ends after signs belong to them
  EXPECT_EQ(words("a   b"), (Words{"a", "ĠĠ", "Ġ", "b"}));
  EXPECT_EQ(words("a \n b"), (Words{"a", "Ġ", "Ċ", "Ġ", "b"}));
  EXPECT_EQ(words("(ab"), (Words{"(", "ab"}));
  EXPECT_EQ(tokenizer.begin_of_text(), (Ids{*tokenizer.id_of("<|begin_of_text|>")}));
  EXPECT_EQ(tokenizer.end_of_text_id(), tokenizer.id_of("<|end_of_text|>"));
  const std::string text = " hello\n\n 12345 'S.";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);

  const auto refusal = [](const char* pointer, const json& value) {
    json file = llama3_json();
    file[json::json_pointer(pointer)] = value;
    return message_of<DataError>([&] { ByteLevelBpe::parse_tokenizer_json(file.dump(), "t"); });
  };
  EXPECT_EQ(refusal("/pre_tokenizer/pretokenizers/0/pattern/Regex", "a|b"),
            "t: pre_tokenizer.pretokenizers[0].pattern.Regex is \"a|b\", which is not GPT-2's or "
            "Llama 3's");
  EXPECT_EQ(
      refusal("/pre_tokenizer/pretokenizers/1/add_prefix_space", true),
      "t: pre_tokenizer.pretokenizers[1].add_prefix_space is true after a Split, which is not "
      "supported");
  json behind = llama3_json()["post_processor"]["processors"][1]["single"];
  behind.push_back(behind[0]);
  EXPECT_EQ(refusal("/post_processor/processors/1/single", behind),
            "t: post_processor.processors[1].single puts tokens behind a text, which is not "
            "supported");
}

TEST(ByteLevelBpe, OtherFilesAreRefusedInOneLine) {
  const auto with = [](const char* pointer, const json& value) {
    json file = toy_json();
    file[json::json_pointer(pointer)] = value;
    const std::string message =
        message_of<DataError>([&] { ByteLevelBpe::parse_tokenizer_json(file.dump(), "t.json"); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_EQ(with("/model/type", "Unigram"),
            "t.json: model.type is \"Unigram\"; give BPE, the only one that is supported here");
  EXPECT_EQ(with("/model/dropout", 0.1), "t.json: model.dropout is set, which is not supported");
  EXPECT_EQ(with("/model/end_of_word_suffix", "</w>"),
            "t.json: model.end_of_word_suffix is set, which is not supported");
  EXPECT_EQ(with("/normalizer", {{"type", "NFC"}}), "t.json: normalizer is set; GPT-2 has none");
  EXPECT_EQ(with("/pre_tokenizer/use_regex", false),
            "t.json: pre_tokenizer.use_regex is false, which is not supported");
  EXPECT_EQ(with("/post_processor/type", "RobertaProcessing"),
            "t.json: post_processor.type is \"RobertaProcessing\"; give ByteLevel or "
            "TemplateProcessing, the only ones that are supported here");
  EXPECT_EQ(with("/model/merges/0", "h"),
            "t.json: model.merges[0] is neither \"a b\" nor [\"a\", \"b\"]");
  EXPECT_EQ(with("/model/merges/1", "h x"),
            "t.json: merge 1 needs the token \"hx\", which the vocabulary lacks; the files do not "
            "belong together");
  const auto files = [](const std::string& vocabulary, const std::string& merges) {
    return message_of<DataError>([&] { ByteLevelBpe::parse_files(vocabulary, merges); });
  };
  EXPECT_EQ(files("[1]", ""),
            "vocab.json: the vocabulary is not an object of tokens and their ids");
  EXPECT_NE(files("{\"a\": 1}", "").find("gives the token \"a\" the id 1"), std::string::npos);
  EXPECT_EQ(files("{\"a\": 0}", "#version: 1\na b c\n"),
            "merges.txt: line 2 is \"a b c\"; a merge is two tokens with a space between them");
  EXPECT_EQ(files("{\"a\": 0}", "a a\n").find("merges.txt: merge 0 needs the token \"aa\""), 0U);
  EXPECT_EQ(files("{\"a\": 0}", "\n\xff"),
            "merges.txt: line 2 is not UTF-8; convert the file to UTF-8");
}

}  // namespace byte_level_bpe_test
}  // namespace lockstep::inline v0::tokenizers
