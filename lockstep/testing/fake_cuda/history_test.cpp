#include "lockstep/testing/fake_cuda/internal/history.h"

#include <gtest/gtest.h>

#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// Two streams; each operation knows its own stream's earlier ones.
struct Streams {
  VectorClock clocks[2];
  uint64_t ticks[2] = {0, 0};

  Access next(int stream, bool write) {
    const Stamp stamp{stream, ++ticks[stream]};
    clocks[stream].advance(stamp);
    return {stamp, nullptr, write};
  }
  std::optional<Access> add(AccessHistory& history, ByteRange bytes, int stream, bool write) {
    const Access access = next(stream, write);
    return history.add(bytes, access, clocks[stream]);
  }
};

TEST(AccessHistory, ReadsDoNotDisturbEachOther) {
  AccessHistory history;
  Streams s;
  EXPECT_FALSE(s.add(history, {0, 8}, 0, false));
  EXPECT_FALSE(s.add(history, {0, 8}, 1, false));
}

TEST(AccessHistory, AReadWantsTheWriteBeforeIt) {
  AccessHistory history;
  Streams s;
  EXPECT_FALSE(s.add(history, {0, 8}, 0, true));
  EXPECT_FALSE(s.add(history, {0, 8}, 0, false)) << "a stream is in order";
  const auto conflict = s.add(history, {0, 8}, 1, false);
  ASSERT_TRUE(conflict);
  EXPECT_TRUE(conflict->write);
  EXPECT_EQ(conflict->stamp.stream, 0);
  s.clocks[1].join(s.clocks[0]);
  EXPECT_FALSE(s.add(history, {0, 8}, 1, false)) << "it has waited";
}

TEST(AccessHistory, AWriteWantsTheReadsBeforeIt) {
  AccessHistory history;
  Streams s;
  s.add(history, {0, 8}, 0, false);
  const auto conflict = s.add(history, {0, 8}, 1, true);
  ASSERT_TRUE(conflict);
  EXPECT_FALSE(conflict->write);
}

TEST(AccessHistory, PartsAreApart) {
  AccessHistory history;
  Streams s;
  EXPECT_FALSE(s.add(history, {0, 8}, 0, true));
  EXPECT_FALSE(s.add(history, {8, 16}, 1, true));
  EXPECT_FALSE(s.add(history, {0, 4}, 0, false));
  EXPECT_TRUE(s.add(history, {4, 12}, 0, false)) << "its second half is the other stream's";
  EXPECT_TRUE(s.add(history, {0, 16}, 1, true));
  EXPECT_FALSE(s.add(history, {2, 3}, 1, false)) << "it wrote all of it last";
}

TEST(AccessHistory, BeyondIsTheLastOfEachStream) {
  AccessHistory history;
  Streams s;
  s.add(history, {0, 4}, 1, false);
  s.add(history, {4, 8}, 1, false);
  s.add(history, {8, 12}, 0, true);
  const auto uses = history.beyond(s.clocks[0]);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].stamp.stream, 1);
  EXPECT_EQ(uses[0].stamp.tick, 2u);
  s.clocks[0].join(s.clocks[1]);
  EXPECT_TRUE(history.beyond(s.clocks[0]).empty());
}

TEST(ByteRanges, AreThoseOfTheElements) {
  const auto text = [](const std::vector<ByteRange>& ranges) {
    std::string result;
    for (const ByteRange& one : ranges)
      result += std::to_string(one.begin) + "-" + std::to_string(one.end) + " ";
    return result;
  };
  EXPECT_EQ(text(byte_ranges({2, 3}, {3, 1}, 4, 0)), "0-24 ");
  EXPECT_EQ(text(byte_ranges({3, 2}, {1, 3}, 4, 8)), "8-32 ") << "transposed";
  EXPECT_EQ(text(byte_ranges({2, 3}, {8, 1}, 4, 0)), "0-12 32-44 ") << "some columns";
  EXPECT_EQ(text(byte_ranges({5}, {0}, 4, 4)), "4-8 ") << "expanded";
  EXPECT_EQ(text(byte_ranges({2, 0}, {1, 1}, 4, 4)), "");
  EXPECT_EQ(text(byte_ranges({}, {}, 4, 4)), "4-8 ");
  EXPECT_EQ(text(byte_ranges({2, 2, 1}, {16, 4, 1}, 1, 0)), "0-1 4-5 16-17 20-21 ");
}

}  // namespace
}  // namespace lockstep::inline v0::testing::fake
