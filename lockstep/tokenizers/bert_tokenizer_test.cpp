#include "lockstep/tokenizers/bert_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::tokenizers {
namespace bert_tokenizer_test {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

const Words kTokens = {"un", "##aff", "##able", "[SEP]", "want", "##ed", "[PAD]",  "runn", "##ing",
                       ",",  "[UNK]", "[CLS]",  "天",    "气",   "好",   "[MASK]", "a",    "##b",
                       "e",  "##e",   "A",      "é",     ".",    "n",    "'",      "t",    "don"};

BertTokenizer toy(const BertTokenizerOptions& options = {}) {
  return BertTokenizer::from_tokens(kTokens, options);
}

TEST(BertTokenizer, SplitsWordsIntoTheLongestPieces) {
  EXPECT_EQ(toy().tokenize("UNaff\u00E4ble,running"),
            (Words{"un", "##aff", "##able", ",", "runn", "##ing"}));
  EXPECT_EQ(toy().tokenize("unaffable wanted"), (Words{"un", "##aff", "##able", "want", "##ed"}));
  EXPECT_EQ(toy().tokenize("want wantx x"), (Words{"want", "[UNK]", "[UNK]"}));
  EXPECT_EQ(toy().tokenize(""), Words{});
  EXPECT_EQ(toy().tokenize(" \t\n\u3000"), Words{});
}

TEST(BertTokenizer, ChineseCharactersAndPunctuationStandAlone) {
  EXPECT_EQ(toy().tokenize("a天气好a,,"), (Words{"a", "天", "气", "好", "a", ",", ","}));
  EXPECT_EQ(toy().tokenize("天雨"), (Words{"天", "[UNK]"}));
  EXPECT_EQ(toy({.chinese_characters = false}).tokenize("天 天气"), (Words{"天", "[UNK]"}));
}

TEST(BertTokenizer, CasesAndAccents) {
  EXPECT_EQ(toy().tokenize("A É e\u0301"), (Words{"a", "e", "e"}));
  EXPECT_EQ(toy({.lowercase = false}).tokenize("A é"), (Words{"A", "é"}));
  EXPECT_EQ(toy({.strip_accents = false}).tokenize("A É"), (Words{"a", "é"}));
  EXPECT_EQ(toy({.lowercase = false, .strip_accents = true}).tokenize("A é"), (Words{"A", "e"}));
  // By character, without regard to the following one: no final sigma; and one that becomes two.
  EXPECT_EQ(toy().normalize("ΑΣ \u0130"), "ασ i");
  EXPECT_EQ(toy({.strip_accents = false}).normalize("\u0130"), "i\u0307");
}

TEST(BertTokenizer, ControlCharactersGoAndMarksComeInOrder) {
  EXPECT_EQ(toy().normalize(std::string("a\0b\u200b\ufffd\tc\u00a0\r\n", 15)), "ab c   ");
  EXPECT_EQ(toy().tokenize("wan\u00adt"), (Words{"want"}));
  EXPECT_EQ(toy({.clean_text = false}).normalize("a\tb\x01"), "a\tb\x01");
  // Two marks that are kept, classes 226 and 216; a removed starter separates them.
  EXPECT_EQ(toy().normalize("a\U0001D16D\U0001D165"), "a\U0001D165\U0001D16D");
  EXPECT_EQ(toy().normalize("a\U0001D16D\u0941\U0001D165"), "a\U0001D16D\U0001D165");
  EXPECT_EQ(toy().normalize("한"), "\u1112\u1161\u11ab");
}

TEST(BertTokenizer, MalformedBytesAreReplacementCharacters) {
  EXPECT_EQ(toy().tokenize("want\xff\xe5\xa4 a\x80"), (Words{"want", "a"}));
  EXPECT_EQ(toy({.clean_text = false}).normalize("a\xff"), "a\ufffd");
}

TEST(BertTokenizer, LongWordsAreUnknown) {
  std::string word(100, 'b');
  word[0] = 'a';
  EXPECT_EQ(toy().tokenize(word).size(), 100U);
  EXPECT_EQ(toy().tokenize(word + "b"), (Words{"[UNK]"}));
  EXPECT_EQ(toy().tokenize("a" + std::string(1'000'000, 'b') + " a"), (Words{"[UNK]", "a"}));
}

TEST(BertTokenizer, SpecialTokensInATextAreTokens) {
  EXPECT_EQ(toy().tokenize("a[MASK]a [CLS]x"), (Words{"a", "[MASK]", "a", "[CLS]", "[UNK]"}));
  EXPECT_EQ(toy().tokenize("[mask]").size(), 3U);  // not under that name
}

TEST(BertTokenizer, EncodesWithSpecialTokensByName) {
  const BertTokenizer tokenizer = toy();
  EXPECT_EQ(tokenizer.cls_id(), 11);
  EXPECT_EQ(tokenizer.pad_id(), 6);
  EXPECT_EQ(tokenizer.mask_id(), 15);
  EXPECT_EQ(tokenizer.encode("天气").ids, (Ids{11, 12, 13, 3}));
  const Encoding pair = tokenizer.encode_pair("天 气", "好");
  EXPECT_EQ(pair.ids, (Ids{11, 12, 13, 3, 14, 3}));
  EXPECT_EQ(pair.type_ids, (Ids{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(pair.attention_mask, (Ids{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(tokenizer.encode("天", {.special_tokens = false}).ids, (Ids{12}));
  EXPECT_EQ(tokenizer.encode("天气好", {.max_length = 4}).ids, (Ids{11, 12, 13, 3}));
  EXPECT_EQ(tokenizer.encode("天", {.max_length = 2}).ids, (Ids{11, 3}));
  EXPECT_EQ(tokenizer.encode_pair("天 天 天", "气 气 气", {.max_length = 6}).ids,
            (Ids{11, 12, 3, 13, 13, 3}));
  EXPECT_THROW(tokenizer.encode("天", {.max_length = 1}), InvalidArgument);
  EXPECT_THROW(tokenizer.encode_pair("天", "天", {.max_length = 2}), InvalidArgument);
  EXPECT_EQ(tokenizer.encode("天", {.max_length = 0, .truncation = Truncation::kNone}).ids.size(),
            3U);
}

TEST(BertTokenizer, BatchesAreTheSameOnAnyNumberOfThreads) {
  const BertTokenizer tokenizer = toy();
  Words texts, pairs;
  for (int i = 0; i < 2000; ++i) {
    texts.push_back(i % 3 == 0 ? "unaffable 天" : std::string(static_cast<size_t>(i % 50), 'a'));
    pairs.push_back(i % 7 == 0 ? "" : "want 好");
  }
  const auto one = tokenizer.encode_batch(texts, {}, {.threads = 1}, pairs);
  EXPECT_EQ(tokenizer.encode_batch(texts, {}, {.threads = 4}, pairs), one);
  for (size_t i = 0; i < texts.size(); i += 97)
    EXPECT_EQ(one[i], tokenizer.encode_pair(texts[i], pairs[i]));
  const auto padded =
      tokenizer.encode_batch(texts, {.max_length = 16}, {.padding = Padding::kMaxLength});
  for (const Encoding& encoding : padded) EXPECT_EQ(encoding.ids.size(), 16U);
  EXPECT_EQ(padded[0].ids.back(), tokenizer.pad_id());
  EXPECT_THROW(tokenizer.encode_batch(texts, {}, {}, std::span(pairs).first(3)), InvalidArgument);
  EXPECT_TRUE(tokenizer.encode_batch({}).empty());
}

TEST(BertTokenizer, Decodes) {
  const BertTokenizer tokenizer = toy();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("unaffable, 天.").ids), "unaffable, 天.");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("don't").ids), "don ' t");
  EXPECT_EQ(tokenizer.decode(Ids{11, 12, 10}, false), "[CLS] 天 [UNK]");
  EXPECT_EQ(tokenizer.decode(Ids{1, 2}), "##affable");
  EXPECT_EQ(tokenizer.decode(Ids{}), "");
  EXPECT_THROW(tokenizer.decode(Ids{-1}), InvalidArgument);
  EXPECT_THROW(tokenizer.decode(Ids{27}), InvalidArgument);
}

TEST(BertTokenizer, OfTheDocuments) {
  const TestDirectory directory;
  toy().save(directory.path());
  const auto folder = directory.path();

  const auto tokenizer = tokenizers::BertTokenizer::load(folder);  // or vocab.txt, tokenizer.json
  const auto encoding = tokenizer.encode_pair("天气好", "unaffable", {.max_length = 128});
  const std::vector<std::string> texts = {"天气", "好"};
  const auto batch = tokenizer.encode_batch(texts, {.max_length = 128},
                                            {.padding = tokenizers::Padding::kLongest});
  const std::string text = tokenizer.decode(encoding.ids);

  EXPECT_EQ(text, "天 气 好 unaffable");
  EXPECT_EQ(batch[1].attention_mask, (Ids{1, 1, 1, 0}));
}

TEST(BertTokenizer, ReadsVocabTxtLineByLine) {
  const TestDirectory dir;
  const auto load = [&](const std::string& text) {
    return BertTokenizer::from_vocab(dir.write("vocab.txt", text));
  };
  // U+2028 ends no line; "\r\n" is one line end.
  const BertTokenizer tokenizer = load("[PAD]\r\n\u2028\n[UNK]\n[CLS]\n[SEP]");
  EXPECT_EQ(tokenizer.vocabulary_size(), 5);
  EXPECT_EQ(tokenizer.id_of("\u2028"), 1);
  EXPECT_EQ(tokenizer.id_of("[SEP]"), 4);
  EXPECT_EQ(tokenizer.id_of("[MASK]"), std::nullopt);
  EXPECT_EQ(tokenizer.mask_id(), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(0), "[PAD]");
}

// Irregularities that editors and scripts leave in published vocabularies; ids are those of
// transformers.
TEST(BertTokenizer, SloppyVocabulariesAreRead) {
  const TestDirectory dir;
  const std::string plain = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nfilm\na\n";
  const auto load = [&](const std::string& text) {
    return BertTokenizer::from_vocab(dir.write("vocab.txt", text));
  };
  const Ids ids = load(plain).encode("a film").ids;
  EXPECT_EQ(ids, (Ids{2, 5, 4, 3}));
  EXPECT_EQ(load("\xef\xbb\xbf" + plain).encode("a film").ids, ids);
  const BertTokenizer blanks = load(plain + "\n\r\n\n");
  EXPECT_EQ(blanks.encode("a film").ids, ids);
  EXPECT_EQ(blanks.vocabulary_size(), 6);
  const BertTokenizer twice = load(plain + "good\nfilm\na\n");
  EXPECT_EQ(twice.encode("a film good").ids, (Ids{2, 8, 7, 6, 3}));
  EXPECT_EQ(twice.token_of(4), "film");
  EXPECT_EQ(twice.vocabulary_size(), 9);
  twice.save(dir.path());
  EXPECT_EQ(BertTokenizer::load(dir.path()).encode("a film good").ids, (Ids{2, 8, 7, 6, 3}));
}

TEST(BertTokenizer, BadVocabulariesGetOneLine) {
  const TestDirectory dir;
  const auto line = [&](const std::string& text) {
    const std::string file = dir.write("vocab.txt", text).string();
    const std::string message = message_of<DataError>([&] { BertTokenizer::from_vocab(file); });
    EXPECT_EQ(message.find(file), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message.substr(file.size());
  };
  EXPECT_EQ(line(""), ": is empty; a vocab.txt has one token a line");
  EXPECT_EQ(line("[PAD]\n[CLS]\n[SEP]\n"),
            ": has no \"[UNK]\", the unknown token; give a BERT vocabulary, or the token's name in "
            "it");
  EXPECT_EQ(line("[PAD]\n\xff\n"), ": line 2 is not UTF-8; give a vocab.txt in UTF-8");
  EXPECT_EQ(line("[UNK]\n" + std::string(17'000'000, 'a')),
            ": has tokens of more than 16 million bytes; give a smaller vocabulary");
  EXPECT_NE(message_of<DataError>([&] {
              BertTokenizer::from_vocab(dir / "none");
            }).find("cannot be opened: No such file"),
            std::string::npos);
  EXPECT_NE(
      message_of<DataError>([&] { BertTokenizer::from_vocab(dir.path()); }).find("is not a file"),
      std::string::npos);
  EXPECT_NE(message_of<DataError>([&] { BertTokenizer::load(dir / "none"); }).find("none"),
            std::string::npos);
}

json toy_json() {
  json vocabulary = json::object();
  for (size_t i = 0; i < kTokens.size(); ++i) vocabulary[kTokens[i]] = i;
  json added = json::array();
  for (const char* token : {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}) {
    added.push_back({{"id", vocabulary[token]},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const auto special = [](const char* id, int type) {
    return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  const auto sequence = [](const char* id, int type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)}},
            {"pair",
             {special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1),
              special("[SEP]", 1)}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocabulary}}}};
}

TEST(BertTokenizer, ReadsTokenizerJson) {
  const BertTokenizer tokenizer = BertTokenizer::parse_tokenizer_json(toy_json().dump(), "t.json");
  for (const char* text : {"unaffable, [MASK] 天气", "É wanted"})
    EXPECT_EQ(tokenizer.encode(text), toy().encode(text));
  json cased = toy_json();
  cased["normalizer"]["lowercase"] = false;
  cased["model"]["max_input_chars_per_word"] = 3;
  cased["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"A", 20}}};
  const auto other = BertTokenizer::parse_tokenizer_json(cased.dump(), "t.json");
  EXPECT_EQ(other.encode("A want").ids, (Ids{20, 20, 10, 3}));
}

TEST(BertTokenizer, RespectsAddedTokens) {
  json file = toy_json();
  const auto add = [&](const char* content, const char* option, bool normalized = false) {
    const size_t id = kTokens.size() + file["added_tokens"].size() - 5;
    json token = {{"id", id}, {"content", content}, {"normalized", normalized}, {"special", false}};
    if (option[0] != '\0') token[option] = true;
    file["added_tokens"].push_back(token);
    return static_cast<int32_t>(id);
  };
  const int32_t whole = add("zz", "single_word"), left = add("<l>", "lstrip"),
                right = add("<r>", "rstrip"), accented = add("Öl", "", true),
                longer = add("zzz", "");
  const auto tokenizer = BertTokenizer::parse_tokenizer_json(file.dump(), "t.json");
  const auto ids = [&](std::string_view text) {
    return tokenizer.encode(text, {.special_tokens = false}).ids;
  };
  EXPECT_EQ(ids("zz"), (Ids{whole}));
  EXPECT_EQ(ids("a,zz."), (Ids{16, 9, whole, 22}));
  EXPECT_EQ(ids("azz"), (Ids{10}));
  EXPECT_EQ(ids("zzé"), (Ids{10}));
  EXPECT_EQ(ids("azzza"), (Ids{16, longer, 16}));
  EXPECT_EQ(ids("a  <l>  <r>  a"), (Ids{16, left, right, 16}));
  EXPECT_EQ(ids("OL öl a"), (Ids{accented, accented, 16}));
  EXPECT_EQ(tokenizer.vocabulary_size(), static_cast<int64_t>(kTokens.size()) + 5);
  // A vocab.txt cannot contain them.
  const TestDirectory dir;
  tokenizer.save(dir.path());
  EXPECT_EQ(dir.names(), (Words{"tokenizer.json", "tokenizer_config.json"}));
  const BertTokenizer again = BertTokenizer::load(dir.path());
  for (const char* text : {"a,zz.", "azzza", "a  <l>  <r>  a", "OL öl a"})
    EXPECT_EQ(again.encode(text).ids, tokenizer.encode(text).ids) << text;
  EXPECT_EQ(again.files(), tokenizer.files());
}

TEST(BertTokenizer, OtherTokenizerJsonsAreRefusedInOneLine) {
  const auto line = [](const std::string& text) {
    const std::string message =
        message_of<DataError>([&] { BertTokenizer::parse_tokenizer_json(text, "t.json"); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  const auto with = [&](const char* pointer, const json& value) {
    json file = toy_json();
    file[json::json_pointer(pointer)] = value;
    return line(file.dump());
  };
  EXPECT_EQ(line("{\n\"model\": }"), "t.json: is not JSON (at byte 12, in line 2)");
  EXPECT_EQ(line("[]"), "t.json: is []; give a JSON object");
  EXPECT_EQ(line("{}"), "t.json: normalizer is missing; give a JSON object");
  EXPECT_EQ(with("/model/type", "BPE"),
            "t.json: model.type is \"BPE\"; give WordPiece, the only one that is supported here");
  EXPECT_EQ(with("/normalizer/type", "NFC"),
            "t.json: normalizer.type is \"NFC\"; give BertNormalizer, the only one that is "
            "supported here");
  EXPECT_EQ(with("/normalizer/lowercase", 1),
            "t.json: normalizer.lowercase is 1; give true or false");
  EXPECT_EQ(with("/pre_tokenizer/type", "Whitespace"),
            "t.json: pre_tokenizer.type is \"Whitespace\"; give BertPreTokenizer, the only one "
            "that is supported here");
  EXPECT_EQ(with("/decoder/prefix", "@@"),
            "t.json: decoder.prefix is not the model's continuing_subword_prefix");
  EXPECT_EQ(with("/model/max_input_chars_per_word", -1),
            "t.json: model.max_input_chars_per_word is -1; give a whole number from 1 to 1000000");
  EXPECT_EQ(with("/post_processor/single/0/SpecialToken/type_id", 1),
            "t.json: post_processor.single is not BERT's [CLS] A [SEP]");
  EXPECT_EQ(
      with("/model/vocab/天", 5),
      "t.json: model.vocab gives the token \"天\" the id 5; the ids of 27 tokens are 0 to 26, "
      "each once");
  EXPECT_NE(with("/model/vocab/un", -3).find("the token \"un\" the id -3"), std::string::npos);
  EXPECT_NE(with("/added_tokens/0/id", 5).find("\"[UNK]\" is 10 in the vocabulary"),
            std::string::npos);
  EXPECT_NE(with("/added_tokens/0", "x").find("added_tokens[0] is \"x\"; give a JSON object"),
            std::string::npos);
  json without = toy_json();
  without["model"]["vocab"].erase("[UNK]");
  EXPECT_NE(line(without.dump()).find("t.json: "), std::string::npos);
  EXPECT_NE(line("{\"a\": \"\xff\"}").find("line 1 is not UTF-8"), std::string::npos);
  EXPECT_NE(line(std::string(100'000, '[')).find("is not JSON"), std::string::npos);
}

TEST(BertTokenizer, LoadsDirectoriesAndSavesThem) {
  const TestDirectory dir;
  EXPECT_NE(message_of<DataError>([&] {
              BertTokenizer::load(dir.path());
            }).find("has neither vocab.txt nor tokenizer.json"),
            std::string::npos);
  const BertTokenizer cased = toy({.lowercase = false, .strip_accents = true, .cls_token = "A"});
  cased.save(dir.path());
  EXPECT_EQ(dir.names(), (Words{"tokenizer_config.json", "vocab.txt"}));
  const BertTokenizer again = BertTokenizer::load(dir.path());
  EXPECT_EQ(again.cls_id(), 20);
  EXPECT_EQ(again.encode("A É a").ids, cased.encode("A É a").ids);
  EXPECT_EQ(again.options().strip_accents, true);
  // The file alone has no settings, which is what the fallback is for.
  EXPECT_EQ(BertTokenizer::load(dir / "vocab.txt", {.lowercase = false}).tokenize("A"), Words{"A"});
  // A tokenizer.json takes precedence over vocab.txt, and tokenizer_config.json over both.
  dir.write("tokenizer.json", toy_json().dump());
  EXPECT_EQ(BertTokenizer::load(dir.path()).tokenize("A"), Words{"A"});
  EXPECT_EQ(BertTokenizer::load(dir / "tokenizer.json").tokenize("A"), Words{"a"});
  dir.write("tokenizer_config.json", "{\"do_lower_case\": 3}");
  EXPECT_NE(message_of<DataError>([&] {
              BertTokenizer::load(dir.path());
            }).find("do_lower_case is 3; give true or false"),
            std::string::npos);
}

}  // namespace bert_tokenizer_test
}  // namespace lockstep::inline v0::tokenizers
