#include "lockstep/timeline/clock_offset.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::timeline::clock_offset_test {

TEST(ClockOffset, IsThatOfShortTrips) {
  constexpr int64_t kAhead = 5'000'000'000;
  std::vector<PingPong> trips;
  // A short trip of 20 us, and long ones that were delayed on the way there or back.
  for (int i = 0; i < 8; ++i) {
    const int64_t asked = i * 1'000'000;
    const int64_t there = i % 4 == 0 ? 10'000 : i % 4 == 1 ? 400'000 : 10'000;
    const int64_t back = i % 4 == 0 ? 10'000 : i % 4 == 2 ? 900'000 : 50'000;
    trips.push_back({asked, asked + there + kAhead, asked + there + back});
  }
  const ClockOffset offset = clock_offset(trips);
  EXPECT_EQ(offset.ns, kAhead);
  EXPECT_EQ(offset.error_ns, 10'000);
}

TEST(ClockOffset, OneTripIsEnough) {
  const ClockOffset offset = clock_offset({{100, 1000, 301}});
  EXPECT_EQ(offset.ns, 800);
  EXPECT_EQ(offset.error_ns, 101);
}

TEST(TickClock, ConvertsBetweenItsReadingsAndBeyond) {
  const TickClock clock({.ticks = 1000, .ns = 50'000}, {.ticks = 3000, .ns = 51'000});
  EXPECT_EQ(clock.ns(1000), 50'000);
  EXPECT_EQ(clock.ns(2000), 50'500);
  EXPECT_EQ(clock.ns(3000), 51'000);
  EXPECT_EQ(clock.ns(3200), 51'100);
  EXPECT_EQ(clock.ns(800), 49'900);
}

TEST(TickClock, OfThisHostRunsWithItsClock) {
  const ClockReading first = read_clocks();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const uint64_t between = ticks();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const TickClock clock(first, read_clocks());
  const int64_t apart =
      clock.ns(between) - std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  EXPECT_LT(std::abs(apart), 5'000'000) << "nanoseconds; another process may come in between";
}

}  // namespace lockstep::inline v0::timeline::clock_offset_test
