#include "lockstep/data/collated.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/tokenized_texts.h"

namespace lockstep::inline v0::data {
namespace collated_test {

using Indices = std::vector<int64_t>;

struct Point {
  double x, y;
};

TEST(Collated, MakesBatchesOfSamplesByAFunction) {
  const std::vector<Point> points{{1, 2}, {3, 4}, {5, 6}};
  const Collated dataset(points, [](std::span<const Point> some) {
    double sum = 0;
    for (const Point& point : some) sum = 10 * sum + point.x;
    return sum;
  });
  static_assert(Dataset<decltype(dataset)>);
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.batch(Indices{2, 0}), 51);

  DistributedSampler sampler(dataset.size(), 1, 0, {.shuffle = false});
  Loader loader(dataset, sampler, {.batch_size = 2});
  std::vector<double> batches;
  for (const double batch : loader) batches.push_back(batch);
  EXPECT_EQ(batches, (std::vector<double>{13, 5}));
}

TEST(Collated, RefusesWhatIsNotThere) {
  const Collated dataset(std::vector<int>{7}, [](std::span<const int> some) { return some[0]; });
  EXPECT_EQ(dataset.batch(Indices{0}), 7);
  EXPECT_THROW(dataset.batch(Indices{}), InvalidArgument);
  EXPECT_THROW(dataset.batch(Indices{1}), InvalidArgument);
  EXPECT_THROW(dataset.batch(Indices{-1}), InvalidArgument);
}

TEST(Collated, TakesTokenizedTexts) {
  const auto tokenizer =
      tokenizers::BertTokenizer::from_tokens({"[UNK]", "[SEP]", "[CLS]", "[PAD]", "天", "气"});
  const std::vector<TextExample> examples = {{.text = "天气", .label = 1},
                                             {.text = "气", .pair = "天", .label = 0}};
  const TokenizedTexts texts(examples, tokenizer);
  const CollateOptions packed{.padding = TextPadding::kPacked};
  const Collated dataset(texts, [&, pad = texts.pad_id()](std::span<const TokenizedText> some) {
    return collate_texts(some, pad, packed);
  });
  const TextBatch own = dataset.batch(Indices{1, 0});
  const TextBatch expected = texts.with_padding(TextPadding::kPacked).batch(Indices{1, 0});
  EXPECT_TRUE(own.input_ids.equal(expected.input_ids));
  EXPECT_TRUE(own.token_type_ids.equal(expected.token_type_ids));
  EXPECT_TRUE(own.labels.equal(expected.labels));
  EXPECT_FALSE(own.attention_mask.defined());
  const std::vector<TokenizedText> all{texts[0]};
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              collate_texts(all, 3, {.padding = TextPadding::kMaxLength, .max_length = 3});
            }),
            "texts: one has 4 tokens, max_length is 3; cut it, or raise max_length");
}

}  // namespace collated_test
}  // namespace lockstep::inline v0::data
