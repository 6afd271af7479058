#include "lockstep/data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace lockstep::inline v0::data {
namespace prefetch_test {

using namespace std::chrono_literals;

TEST(PrefetchRing, HandsPiecesOverInOrder) {
  for (const int workers : {0, 1, 2, 5}) {
    for (const int64_t ahead : {1, 2, 7}) {
      const PrefetchRing::Shape shape{.first = 3, .count = 200, .workers = workers, .ahead = ahead};
      std::vector<int64_t> held(PrefetchRing::slots(shape), -1);
      PrefetchRing ring(shape, [&](int64_t number, size_t slot) {
        if (number % 7 == 0) std::this_thread::sleep_for(100us);
        held[slot] = number;
      });
      for (int64_t expected = 3; expected < 200; ++expected) {
        const auto slot = ring.next();
        ASSERT_TRUE(slot);
        ASSERT_EQ(held[*slot], expected);
      }
      EXPECT_FALSE(ring.next());
      EXPECT_FALSE(ring.next());
    }
  }
}

TEST(PrefetchRing, StaysWithinItsBound) {
  std::atomic<int64_t> made = 0;
  PrefetchRing ring({.first = 0, .count = 1000, .workers = 3, .ahead = 4},
                    [&](int64_t, size_t) { ++made; });
  // The count reaches `count`, and stays there.
  const auto expect_made = [&](int64_t count) {
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (made < count && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(made, count);
  };
  ASSERT_TRUE(ring.next());
  expect_made(5);  // one at the consumer, four ahead
  ASSERT_TRUE(ring.next());
  expect_made(6);
}

TEST(PrefetchRing, MayBeLeftAtAnyMoment) {
  for (int taken = 0; taken < 6; ++taken) {
    std::atomic<int64_t> made = 0;
    {
      PrefetchRing ring({.first = 0, .count = 100, .workers = 4, .ahead = 4}, [&](int64_t, size_t) {
        std::this_thread::sleep_for(1ms);
        ++made;
      });
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(ring.next());
    }
    EXPECT_LE(made, taken + 5);  // started pieces are finished, and no more are started
  }
}

TEST(PrefetchRing, ThrowsInPlaceAndStops) {
  for (const int workers : {0, 1, 4}) {
    std::atomic<int64_t> made = 0;
    const auto started = std::chrono::steady_clock::now();
    PrefetchRing ring({.first = 0, .count = 1000, .workers = workers, .ahead = 8},
                      [&](int64_t number, size_t) {
                        ++made;
                        if (number == 5) throw std::runtime_error("piece 5");
                      });
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(ring.next());
    for (int i = 0; i < 2; ++i) {
      try {
        ring.next();
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(std::string(error.what()), "piece 5");
      }
    }
    std::this_thread::sleep_for(20ms);
    EXPECT_LE(made, 14);  // those within the bound
    if (workers == 1) {
      EXPECT_EQ(made, 6);  // nothing is started after a piece has failed
    }
    EXPECT_LT(std::chrono::steady_clock::now() - started, 10s);
  }
}

TEST(PrefetchRing, EmptyRingsEnd) {
  for (const int workers : {0, 2}) {
    PrefetchRing ring({.first = 4, .count = 4, .workers = workers, .ahead = 2},
                      [](int64_t, size_t) { FAIL(); });
    EXPECT_FALSE(ring.next());
  }
}

}  // namespace prefetch_test
}  // namespace lockstep::inline v0::data
