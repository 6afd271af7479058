#include "lockstep/data/sentences.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep::inline v0::data {
namespace sentences_test {

TEST(Sentences, TheSameBytesEverywhere) {
  const auto sentences = render_sentences(500, 1234, SentencesSplit::kTrain);
  ASSERT_EQ(sentences.size(), 500U);
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  std::map<int64_t, int> labels;
  for (const Sentence& sentence : sentences) {
    for (const char byte : sentence.text + "\n")
      hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211U;
    hash = (hash ^ static_cast<uint64_t>(sentence.label)) * 1099511628211U;
    ++labels[sentence.label];
    EXPECT_EQ(sentence.text.find_first_of("{}|"), std::string::npos) << sentence.text;
    EXPECT_FALSE(sentence.text.empty());
  }
  EXPECT_EQ(hash, 4881195228067099489U);
  EXPECT_EQ(labels.size(), 6U);
  for (const auto& [label, count] : labels) EXPECT_GE(count, 30) << label;
  // A sentence does not depend on the number requested.
  EXPECT_EQ(render_sentences(3, 1234, SentencesSplit::kTrain)[2].text, sentences[2].text);
  EXPECT_NE(render_sentences(3, 1234, SentencesSplit::kDev)[2].text, sentences[2].text);
  EXPECT_NE(render_sentences(3, 1235, SentencesSplit::kTrain)[2].text, sentences[2].text);
  EXPECT_THROW(render_sentences(-1, 0, SentencesSplit::kTrain), InvalidArgument);
}

TEST(Sentences, WritesADataSetAndItsVocabularyOnce) {
  const TestDirectory dir;
  const auto set = dir / "a/b";
  EXPECT_TRUE(generate_sentences(set, {.train = 300, .dev = 40, .seed = 5}));
  EXPECT_FALSE(generate_sentences(set, {.train = 300, .dev = 40, .seed = 5}));
  const TextClassification data = text_classification(set);
  EXPECT_EQ(data.train.size(), 300U);
  EXPECT_EQ(data.dev.size(), 40U);
  EXPECT_EQ(data.labels, sentence_labels());
  const auto tokenizer = tokenizers::BertTokenizer::load(set);
  for (const TextExample& example : data.train) {
    for (const int32_t id : tokenizer.encode(example.text).ids)
      EXPECT_NE(id, tokenizer.unk_id()) << example.text;
  }
  EXPECT_TRUE(generate_sentences(set, {.train = 301, .dev = 40, .seed = 5}));
  EXPECT_EQ(text_classification(set).train.size(), 301U);
}

TEST(Sentences, LeavesOtherPeoplesFilesAlone) {
  const TestDirectory dir;
  dir.write("train.json", "precious");
  const auto line = message_of<InvalidArgument>([&] { generate_sentences(dir.path()); });
  EXPECT_NE(line.find("train.json"), std::string::npos) << line;
  EXPECT_EQ(dir.names().size(), 1U);
  EXPECT_THROW(generate_sentences(dir / "new", {.dev = 0}), InvalidArgument);
}

}  // namespace sentences_test
}  // namespace lockstep::inline v0::data
