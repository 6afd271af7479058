#include "lockstep/tokenizers/encoding.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::tokenizers {
namespace encoding_test {

using Lengths = std::pair<size_t, size_t>;

// The expected lengths are those of tokenizers 0.23; tests/oracle/tokenizer_parity.py compares many
// more.
TEST(Truncation, LongestFirst) {
  const auto cut = [](size_t a, size_t b, size_t room) {
    return truncated_lengths(a, b, room, Truncation::kLongestFirst);
  };
  EXPECT_EQ(cut(3, 4, 7), (Lengths{3, 4}));
  EXPECT_EQ(cut(20, 0, 7), (Lengths{7, 0}));
  EXPECT_EQ(cut(2, 20, 7), (Lengths{2, 5}));
  EXPECT_EQ(cut(20, 2, 7), (Lengths{5, 2}));
  EXPECT_EQ(cut(20, 30, 7), (Lengths{3, 4}));
  EXPECT_EQ(cut(30, 20, 7), (Lengths{4, 3}));
  EXPECT_EQ(cut(4, 4, 7), (Lengths{3, 4}));
  EXPECT_EQ(cut(5, 5, 0), (Lengths{0, 0}));
  EXPECT_EQ(truncated_lengths(9, 9, 4, Truncation::kNone), (Lengths{9, 9}));
}

TEST(Truncation, OneTextOnly) {
  EXPECT_EQ(truncated_lengths(10, 3, 7, Truncation::kOnlyFirst), (Lengths{4, 3}));
  EXPECT_EQ(truncated_lengths(3, 10, 7, Truncation::kOnlySecond), (Lengths{3, 4}));
  const std::string line =
      message_of<InvalidArgument>([] { truncated_lengths(3, 10, 7, Truncation::kOnlyFirst); });
  EXPECT_NE(line.find("the first text has 3 tokens and 6 must go"), std::string::npos) << line;
}

std::vector<Encoding> encodings(std::initializer_list<size_t> lengths) {
  std::vector<Encoding> made;
  for (const size_t length : lengths) {
    made.push_back({.ids = std::vector<int32_t>(length, 7),
                    .type_ids = std::vector<int32_t>(length, 1),
                    .attention_mask = std::vector<int32_t>(length, 1)});
  }
  return made;
}

TEST(Padding, ToTheLongestAndToAMultiple) {
  auto batch = encodings({3, 5, 1});
  pad(batch, Padding::kLongest, 0, 1, 9);
  EXPECT_EQ(batch[0].ids, (std::vector<int32_t>{7, 7, 7, 9, 9}));
  EXPECT_EQ(batch[0].type_ids, (std::vector<int32_t>{1, 1, 1, 0, 0}));
  EXPECT_EQ(batch[2].attention_mask, (std::vector<int32_t>{1, 0, 0, 0, 0}));
  pad(batch, Padding::kLongest, 0, 8, 9);
  for (const Encoding& encoding : batch) EXPECT_EQ(encoding.ids.size(), 8U);
}

TEST(Padding, ToAFixedLength) {
  auto batch = encodings({3, 9});
  pad(batch, Padding::kNone, 6, 4, 0);
  EXPECT_EQ(batch, encodings({3, 9}));
  pad(batch, Padding::kMaxLength, 6, 1, 0);
  EXPECT_EQ(batch[0].ids.size(), 6U);
  EXPECT_EQ(batch[1].ids.size(), 9U);  // longer ones are not cut
  EXPECT_THROW(pad(batch, Padding::kMaxLength, 0, 1, 0), InvalidArgument);
  EXPECT_THROW(pad(batch, Padding::kLongest, 6, 0, 0), InvalidArgument);
}

}  // namespace encoding_test
}  // namespace lockstep::inline v0::tokenizers
