#include "lockstep/comm/internal/waited_ticks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep::inline v0::waited_ticks_test {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// A counter of a billion ticks a second. interrupted(i): the delay between the i-th read of the
// time, from 0, and the read of the ticks after it.
template <typename Interrupted>
struct Clocks {
  Interrupted interrupted;
  uint64_t now = 5'000'000;
  int reads = 0;

  TickMoment read() {
    return read_moment([&] { return now += 20; },
                       [&] {
                         const steady_clock::time_point time{std::chrono::nanoseconds(now)};
                         now += interrupted(reads++);
                         return time;
                       });
  }
};

int64_t apart(const TickMoment& moment) {
  const auto time = std::chrono::nanoseconds(moment.time.time_since_epoch()).count();
  return std::abs(time - static_cast<int64_t>(moment.ticks));
}

TEST(ReadMoment, OneReadIsEnoughWhereNothingComesBetween) {
  Clocks clocks{[](int) { return uint64_t{30}; }};
  EXPECT_LT(apart(clocks.read()), 100);
  EXPECT_EQ(clocks.reads, 1);
}

TEST(ReadMoment, IsReadAgainWhereAnotherProcessComesBetween) {
  Clocks clocks{[](int read) { return read < 2 ? uint64_t{10'000'000} : 30; }};
  EXPECT_LT(apart(clocks.read()), 100) << "10 ms would be half of 20 ms";
  EXPECT_EQ(clocks.reads, 3);
}

TEST(ReadMoment, OnASlowClockTheClosestOfEightCounts) {
  Clocks clocks{[](int read) { return read == 4 ? uint64_t{20'000} : 90'000; }};
  EXPECT_LE(apart(clocks.read()), 10'020);
  EXPECT_EQ(clocks.reads, 8);
}

TEST(WaitedTicks, AreSecondsOfTheSystemsClock) {
  WaitedTicks waited;
  EXPECT_EQ(waited.seconds(), 0);
  const auto start = steady_clock::now();
  const uint64_t begun = ticks();
  while (steady_clock::now() - start < microseconds(200)) continue;
  waited.add(ticks() - begun);
  const std::chrono::duration<double> passed = steady_clock::now() - start;
  EXPECT_GT(waited.seconds(), 0);
  EXPECT_LT(waited.seconds(), 2 * passed.count() + 0.001);
}

}  // namespace lockstep::inline v0::waited_ticks_test
