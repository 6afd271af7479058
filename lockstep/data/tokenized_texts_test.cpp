#include "lockstep/data/tokenized_texts.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/length_grouped_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sentences.h"

namespace lockstep::inline v0::data {
namespace tokenized_texts_test {

static_assert(Dataset<TokenizedTexts>);

tokenizers::BertTokenizer tokenizer() {
  return tokenizers::BertTokenizer::from_tokens(
      {"[UNK]", "[SEP]", "[CLS]", "[PAD]", "天", "气", "好"});
}

const std::vector<TextExample> kTexts = {
    {.text = "天气", .label = 1}, {.text = "好"}, {.text = "天气好天气好", .label = 0}};
const std::vector<TextExample> kPairs = {{.text = "天", .pair = "气好", .label = 2},
                                         {.text = "天天", .pair = "", .label = 0}};

std::vector<int64_t> values(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), torch::kLong);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}
using Values = std::vector<int64_t>;

TEST(TokenizedTexts, PadsToTheLongest) {
  const TokenizedTexts texts(kTexts, tokenizer(), {.max_length = 7});
  EXPECT_EQ(texts.size(), 3);
  EXPECT_EQ(texts.lengths(), (Values{4, 3, 7}));  // the last one is truncated
  EXPECT_EQ(texts.labels(), (Values{1, -1, 0}));
  const TextBatch batch = texts.batch(Values{1, 0});
  EXPECT_EQ(batch.input_ids.sizes(), (torch::IntArrayRef{2, 4}));
  EXPECT_EQ(values(batch.input_ids), (Values{2, 6, 1, 3, 2, 4, 5, 1}));
  EXPECT_EQ(values(batch.attention_mask), (Values{1, 1, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(values(batch.token_type_ids), (Values{0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(batch.lengths), (Values{3, 4}));
  EXPECT_EQ(values(batch.labels), (Values{-1, 1}));
  EXPECT_EQ(values(texts.batch(Values{2}).input_ids), (Values{2, 4, 5, 6, 4, 5, 1}));
}

TEST(TokenizedTexts, PadsToAMultipleOrToTheFullLength) {
  const TokenizedTexts texts(kTexts, tokenizer(), {.max_length = 7, .pad_to_multiple = 4});
  EXPECT_EQ(texts.batch(Values{0}).input_ids.size(1), 4);
  EXPECT_EQ(texts.batch(Values{1}).input_ids.size(1), 4);
  EXPECT_EQ(texts.batch(Values{1, 2}).input_ids.size(1), 7);  // not above max_length
  const TextBatch full = texts.with_padding(TextPadding::kMaxLength).batch(Values{1, 1});
  EXPECT_EQ(full.input_ids.sizes(), (torch::IntArrayRef{2, 7}));
  EXPECT_EQ(full.attention_mask.sum().item<int64_t>(), 6);
}

TEST(TokenizedTexts, PacksSequencesEndToEnd) {
  const TokenizedTexts texts(kPairs, tokenizer(), {.padding = TextPadding::kPacked});
  const TextBatch batch = texts.batch(Values{1, 0, 1});
  EXPECT_EQ(values(batch.input_ids), (Values{2, 4, 4, 1, 1, 2, 4, 1, 5, 6, 1, 2, 4, 4, 1, 1}));
  EXPECT_EQ(values(batch.token_type_ids), (Values{0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1}));
  EXPECT_EQ(values(batch.lengths), (Values{5, 6, 5}));
  EXPECT_EQ(values(batch.labels), (Values{0, 2, 0}));
  EXPECT_FALSE(batch.attention_mask.defined());
}

TEST(TokenizedTexts, PairsHaveTypes) {
  const TokenizedTexts texts(kPairs, tokenizer());
  const TextBatch batch = texts.batch(Values{0, 1});
  EXPECT_EQ(values(batch.input_ids), (Values{2, 4, 1, 5, 6, 1, 2, 4, 4, 1, 1, 3}));
  EXPECT_EQ(values(batch.token_type_ids), (Values{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(values(batch.attention_mask), (Values{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
}

TEST(TokenizedTexts, GoesThroughTheLoader) {
  std::vector<TextExample> examples;
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    for (int j = 0; j < i % 30; ++j) text += j % 2 == 0 ? "天" : "气";
    examples.push_back({.text = text, .label = i % 4});
  }
  const TokenizedTexts one(examples, tokenizer(), {}, 1), many(examples, tokenizer(), {}, 4);
  EXPECT_EQ(one.lengths(), many.lengths());
  LengthGroupedSampler sampler(many.lengths(), 1, 0, {.batch_size = 16});
  Loader loader(many, sampler, {.batch_size = 16, .num_workers = 2});
  int64_t count = 0, tokens = 0;
  for (const TextBatch& batch : loader) {
    count += batch.labels.size(0);
    tokens += batch.attention_mask.sum().item<int64_t>();
    EXPECT_TRUE(batch.attention_mask.sum(1).equal(batch.lengths));
  }
  EXPECT_EQ(count, 1000);
  int64_t expected = 0;
  for (const int64_t length : one.lengths()) expected += length;
  EXPECT_EQ(tokens, expected);
}

struct OneRank {
  int rank() const { return 0; }
  int size() const { return 1; }
};

TEST(TokenizedTexts, FromAFolderToBatches) {
  const TestDirectory directory;
  const auto folder = directory / "sentences";
  generate_sentences(folder, {.train = 300, .dev = 30});
  const OneRank comm;
  int64_t samples = 0;

  const auto data = data::text_classification(folder, {.preprocessing = {.strip = true}});
  const auto tokenizer = tokenizers::BertTokenizer::load(folder);
  const data::TokenizedTexts train(data.train, tokenizer, {.max_length = 128});
  data::LengthGroupedSampler sampler(train.lengths(), comm, {.batch_size = 32 * comm.size()});
  data::Loader loader(train, sampler, {.batch_size = 32});
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    for (const data::TextBatch& batch : loader) samples += batch.input_ids.size(0);
  }

  EXPECT_EQ(samples, 900);
  EXPECT_EQ(data.labels.size(), 6U);
}

TEST(TokenizedTexts, RefusesWhatCannotBe) {
  const TokenizedTexts texts(kTexts, tokenizer());
  EXPECT_THROW(texts.batch(Values{3}), InvalidArgument);
  EXPECT_THROW(texts.batch(Values{0, -1}), InvalidArgument);
  EXPECT_THROW(texts.batch(Values{}), InvalidArgument);
  EXPECT_THROW(TokenizedTexts().batch(Values{0}), InvalidArgument);
  EXPECT_EQ(TokenizedTexts().size(), 0);
  EXPECT_EQ(TokenizedTexts({}, tokenizer()).size(), 0);
  EXPECT_THROW(texts.with_padding(TextPadding::kPacked, 8), InvalidArgument);
  EXPECT_THROW(texts.with_padding(TextPadding::kLongest, 0), InvalidArgument);
  EXPECT_THROW(TokenizedTexts(kTexts, tokenizer(), {.max_length = 1}), InvalidArgument);
}

}  // namespace tokenized_texts_test
}  // namespace lockstep::inline v0::data
