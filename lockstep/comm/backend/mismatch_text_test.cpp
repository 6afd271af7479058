#include "lockstep/comm/backend/mismatch_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::inline v0::mismatch_text_test {
namespace {

constexpr const char* kEnd = " every rank must call the same operations in the same order";

TEST(MismatchText, NamesEachCallOnceWithItsRanks) {
  const std::vector<RankCall> calls = {{0, 7, "barrier"}, {1, 7, "all_gather"}, {3, 7, "barrier"}};
  EXPECT_EQ(mismatch_text(calls),
            std::string("ranks called different collectives: ranks 0, 3: #7 barrier; rank 1: #7 "
                        "all_gather;") +
                kEnd);
}

TEST(MismatchText, TheNumberIsPartOfTheCall) {
  const std::vector<RankCall> calls = {{0, 7, "barrier"}, {1, 6, "barrier"}};
  EXPECT_EQ(mismatch_text(calls, "#9 barrier"),
            std::string("ranks called different collectives, noticed at #9 barrier: rank 0: #7 "
                        "barrier; rank 1: #6 barrier;") +
                kEnd);
}

TEST(MismatchText, FingerprintsDecideWhereBothAreKnown) {
  const std::vector<RankCall> calls = {{0, 7, "barrier at a.cpp:1", 5},
                                       {1, 7, "barrier at b.cpp:2", 5},
                                       {2, 7, "barrier at a.cpp:1", 6}};
  EXPECT_EQ(mismatch_text(calls),
            std::string("ranks called different collectives: ranks 0, 1: #7 barrier at a.cpp:1; "
                        "rank 2: #7 barrier at a.cpp:1;") +
                kEnd);
}

}  // namespace
}  // namespace lockstep::inline v0::mismatch_text_test
