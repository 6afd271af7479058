#include "lockstep/launch/simulated_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch::simulated_failures_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::ThrowsMessage;

const SimulatedFailures::Time kStart = SimulatedFailures::Time() + std::chrono::hours(1);

TEST(FailureDrill, IsParsed) {
  EXPECT_EQ(parse_failure_drill("every=60"), (FailureDrill{.every = seconds(60)}));
  EXPECT_EQ(parse_failure_drill("seed=7,every=0.5"),
            (FailureDrill{.every = milliseconds(500), .seed = 7}));
}

TEST(FailureDrill, NonsenseIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "expected every=SECONDS[,seed=N]"},
      {"seed=1", "expected every=SECONDS[,seed=N]"},
      {"60", "'60': expected every=SECONDS[,seed=N]"},
      {"every=0", "every=0: expected seconds above 0"},
      {"every=x", "every=x: expected seconds above 0"},
      {"every=1,seed=-1", "seed=-1: expected a number from 0"},
      {"every=1,", "expected every=SECONDS[,seed=N]"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_THAT([&] { parse_failure_drill(text); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(SimulatedFailures, ComeAboutAsOftenAsAskedAndHitAll) {
  SimulatedFailures failures({.every = seconds(10), .seed = 1}, kStart);
  auto last = kStart;
  std::set<int> hit;
  for (int i = 0; i < 200; ++i) {
    const auto now = failures.next_time();
    EXPECT_GE(now - last, seconds(5));
    EXPECT_LE(now - last, seconds(15));
    EXPECT_FALSE(failures.take({0, 1, 2}, now - milliseconds(1)));
    hit.insert(failures.take({0, 1, 2}, now).value());
    last = now;
  }
  EXPECT_EQ(hit, (std::set<int>{0, 1, 2}));
  EXPECT_NEAR(std::chrono::duration<double>(last - kStart).count() / 200, 10, 1);
}

TEST(SimulatedFailures, AreTheSameForTheSameSeed) {
  SimulatedFailures one({.every = seconds(1), .seed = 5}, kStart),
      same({.every = seconds(1), .seed = 5}, kStart),
      other({.every = seconds(1), .seed = 6}, kStart);
  bool differs = false;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(one.next_time(), same.next_time());
    differs = differs || one.next_time() != other.next_time();
    EXPECT_EQ(one.take({0, 1}, one.next_time()), same.take({0, 1}, same.next_time()));
    other.take({0, 1}, other.next_time());
  }
  EXPECT_TRUE(differs);
}

TEST(SimulatedFailures, NobodyRunningIsNobodyHit) {
  SimulatedFailures failures({.every = seconds(1)}, kStart);
  const auto first = failures.next_time();
  EXPECT_FALSE(failures.take({}, first));
  EXPECT_GT(failures.next_time(), first);
}

}  // namespace
}  // namespace lockstep::inline v0::launch::simulated_failures_test
