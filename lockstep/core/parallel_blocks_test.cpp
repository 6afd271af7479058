#include "lockstep/core/parallel_blocks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace parallel_blocks_test {

TEST(ParallelBlocks, EachPieceOnce) {
  for (const int threads : {0, 1, 3, 8}) {
    for (const int64_t count : {0, 1, 5, 64, 1000}) {
      for (const int64_t least : {1, 7, 2000}) {
        std::vector<std::atomic<int>> done(static_cast<size_t>(count));
        parallel_blocks(count, least, threads, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_TRUE(end == count || end - begin >= least);
          for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
        });
        for (const auto& times : done) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(ParallelBlocks, ThrowsWhatTheWorkThrew) {
  EXPECT_THROW(parallel_blocks(1000, 1, 4,
                               [](int64_t begin, int64_t) {
                                 if (begin > 100) throw DataError("bad");
                               }),
               DataError);
  EXPECT_THROW(parallel_blocks(1, 1, -1, [](int64_t, int64_t) {}), InvalidArgument);
  EXPECT_THROW(parallel_blocks(1, 0, 1, [](int64_t, int64_t) {}), InvalidArgument);
}

}  // namespace parallel_blocks_test
}  // namespace lockstep::inline v0
