#include "lockstep/parallel/context/context_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::context_layout_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ContextLayout, ChunksLieEndToEndAndDifferByOne) {
  for (int64_t parts = 1; parts <= 6; ++parts) {
    for (int64_t length = 0; length <= 60; ++length) {
      int64_t end = 0, least = length, most = 0;
      for (int64_t i = 0; i < 2 * parts; ++i) {
        const ContextChunk chunk = context_chunk(length, i, parts);
        ASSERT_EQ(chunk.begin, end);
        end = chunk.end;
        least = std::min(least, chunk.size());
        most = std::max(most, chunk.size());
      }
      ASSERT_EQ(end, length);
      ASSERT_GE(least, 0);
      ASSERT_LE(most - least, 1);
    }
  }
}

TEST(ContextLayout, RowsCoverTheBatchInOrder) {
  const std::vector<std::vector<int64_t>> batches{
      {1}, {8}, {8, 3}, {1, 1, 1}, {17, 2, 40, 1, 9}, {5, 5, 5, 4, 4}, {}};
  for (const auto& lengths : batches) {
    const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    for (int64_t parts = 1; parts <= 6; ++parts) {
      std::vector<int64_t> seen(static_cast<size_t>(all), 0);
      for (int64_t part = 0; part < parts; ++part) {
        const auto rows = context_rows(lengths, part, parts);
        ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end()));
        ASSERT_EQ(static_cast<int64_t>(rows.size()), context_count(lengths, part, parts));
        for (const int64_t row : rows) ++seen.at(static_cast<size_t>(row));
      }
      for (const int64_t times : seen) ASSERT_EQ(times, 1);
    }
  }
  EXPECT_THAT(context_rows({8, 3}, 0, 2), ElementsAre(0, 1, 6, 7, 10));
  EXPECT_THAT(context_rows({8, 3}, 1, 2), ElementsAre(2, 3, 4, 5, 8, 9));
}

// Of all lengths and parts: a token sees what is before it and itself, each in one block.
TEST(ContextLayout, BlocksAreTheCausalMask) {
  for (int64_t parts = 1; parts <= 5; ++parts) {
    for (int64_t length = 1; length <= 33; ++length) {
      std::vector<std::vector<int>> seen(static_cast<size_t>(length),
                                         std::vector<int>(static_cast<size_t>(length), 0));
      for (int64_t part = 0; part < parts; ++part) {
        const auto own = context_rows({length}, part, parts);
        for (int64_t other = 0; other < parts; ++other) {
          const auto theirs = context_rows({length}, other, parts);
          const ContextBlock block = context_block(length, part, other, parts);
          for (int64_t q = block.query_begin; q < block.query_begin + block.queries; ++q) {
            for (int64_t k = block.key_begin; k < block.key_begin + block.keys; ++k) {
              if (block.causal && k - block.key_begin > q - block.query_begin) continue;
              ++seen.at(static_cast<size_t>(own.at(static_cast<size_t>(q))))
                    .at(static_cast<size_t>(theirs.at(static_cast<size_t>(k))));
            }
          }
        }
      }
      for (int64_t i = 0; i < length; ++i)
        for (int64_t j = 0; j < length; ++j)
          ASSERT_EQ(seen[static_cast<size_t>(i)][static_cast<size_t>(j)], j <= i ? 1 : 0)
              << length << " tokens, " << parts << " parts: " << i << " sees " << j;
    }
  }
}

// In every turn of the ring, too: no part waits for another's larger block.
TEST(ContextLayout, EveryPartHasAsMuchToDo) {
  const int64_t length = 4096;
  for (const int64_t parts : {2, 4, 8}) {
    for (int64_t turn = 0; turn < parts; ++turn) {
      std::vector<int64_t> work;
      for (int64_t part = 0; part < parts; ++part) {
        const ContextBlock block =
            context_block(length, part, (part - turn + parts) % parts, parts);
        work.push_back(block.causal ? block.queries * (block.keys + 1) / 2
                                    : block.queries * block.keys);
      }
      EXPECT_EQ(*std::min_element(work.begin(), work.end()),
                *std::max_element(work.begin(), work.end()));
    }
  }
}

TEST(ContextLayout, RunsAreSequencesOfOneLengthSideBySide) {
  EXPECT_THAT(context_runs({5, 5, 3, 5}),
              ElementsAre(ContextRun{2, 5}, ContextRun{1, 3}, ContextRun{1, 5}));
  EXPECT_TRUE(context_runs({}).empty());
}

TEST(ContextLayout, WhatIsNoPartIsRefused) {
  EXPECT_THAT(message_of<InvalidArgument>([] { context_rows({4}, 2, 2); }),
              HasSubstr("part 2 of 2"));
  EXPECT_THAT(message_of<InvalidArgument>([] { context_chunk(4, 4, 2); }), HasSubstr("chunk 4"));
  EXPECT_THAT(message_of<InvalidArgument>([] { context_count(-1, 0, 2); }), HasSubstr("-1 tokens"));
}

}  // namespace
}  // namespace lockstep::inline v0::context_layout_test
