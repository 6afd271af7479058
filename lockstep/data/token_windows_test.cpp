#include "lockstep/data/token_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/data/dataset.h"

namespace lockstep::inline v0::data::token_windows_test {
namespace {

using ::testing::ElementsAre;

static_assert(Dataset<TokenWindows>);

std::vector<int64_t> values(const at::Tensor& tensor) {
  const auto* const first = tensor.const_data_ptr<int64_t>();
  return {first, first + tensor.numel()};
}

TEST(TokenWindows, ATargetIsTheTokenThatComesNext) {
  const std::vector<std::vector<int32_t>> texts{{1, 2, 3, 4, 5, 6, 7, 8}};
  const TokenWindows windows(texts, 3);
  EXPECT_EQ(windows.size(), 2);
  const std::vector<int64_t> both{1, 0};
  const LmBatch batch = windows.batch(both);
  EXPECT_THAT(values(batch.ids), ElementsAre(4, 5, 6, 1, 2, 3));
  EXPECT_THAT(values(batch.targets), ElementsAre(5, 6, 7, 2, 3, 4));
  EXPECT_THAT(values(batch.lengths), ElementsAre(3, 3));
}

TEST(TokenWindows, TextsDoNotSeeEachOther) {
  const std::vector<std::vector<int32_t>> texts{{1, 2, 3}, {9}, {4, 5}, {6, 7, 8}, {}};
  const TokenWindows windows(texts, 4);
  ASSERT_EQ(windows.size(), 2);
  const std::vector<int64_t> both{0, 1};
  const LmBatch batch = windows.batch(both);
  EXPECT_THAT(values(batch.ids), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values(batch.targets), ElementsAre(2, 3, kNoTarget, 5, kNoTarget, 7, 8, kNoTarget));
  EXPECT_THAT(values(batch.lengths), ElementsAre(3, 1, 1, 3));
}

TEST(TokenWindows, NonsenseIsRefused) {
  const std::vector<std::vector<int32_t>> texts{{1, 2, 3}}, negative{{1, -2}};
  EXPECT_THROW(TokenWindows(texts, 0), InvalidArgument);
  EXPECT_THROW(TokenWindows(negative, 1), InvalidArgument);
  const TokenWindows windows(texts, 2);
  const std::vector<int64_t> beyond{1}, none;
  EXPECT_THROW(windows.batch(beyond), InvalidArgument);
  EXPECT_THROW(windows.batch(none), InvalidArgument);
  EXPECT_EQ(TokenWindows().size(), 0);
}

TEST(TokenWindows, TheRestMayBeAShorterWindow) {
  const std::vector<std::vector<int32_t>> texts{{1, 2, 3}, {4, 5, 6, 7}};
  const TokenWindows whole(texts, 4), all(texts, 4, WindowRest::kKept);
  EXPECT_EQ(whole.size(), 1);
  EXPECT_EQ(whole.tokens(), 4);
  EXPECT_EQ(whole.targets(), 3);
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(all.tokens(), 7);
  EXPECT_EQ(all.targets(), 5);
  const LmBatch batch = all.batch(std::vector<int64_t>{1, 0});
  EXPECT_THAT(values(batch.ids), ElementsAre(5, 6, 7, 1, 2, 3, 4));
  EXPECT_THAT(values(batch.targets), ElementsAre(6, 7, kNoTarget, 2, 3, kNoTarget, 5));
  EXPECT_THAT(values(batch.lengths), ElementsAre(3, 3, 1));
  EXPECT_EQ(TokenWindows(texts, 7, WindowRest::kKept).size(), 1);
  EXPECT_EQ(TokenWindows({}, 7, WindowRest::kKept).size(), 0);
}

}  // namespace
}  // namespace lockstep::inline v0::data::token_windows_test
