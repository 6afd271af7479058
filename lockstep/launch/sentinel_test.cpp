// The sentinel; the test acts as its agent.
#include "lockstep/launch/sentinel.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::launch {
namespace sentinel_test {

using std::chrono::hours;
using Clock = std::chrono::steady_clock;

Subprocess start_sleeper() {
  SubprocessOptions options;
  options.command = {"sleep", "1000"};
  options.own_session = true;
  return Subprocess(options);
}

TEST(Sentinel, EndsWhoIsWatchedOnceItsAgentHasNotHeldThemForTooLong) {
  Subprocess watched = start_sleeper(), forgotten = start_sleeper();
  Sentinel sentinel(2);
  sentinel.watch(0, watched.pid());
  sentinel.watch(1, forgotten.pid());
  sentinel.forget(1);
  EXPECT_TRUE(sentinel.hold_until(Clock::now() + hours(1)));
  EXPECT_TRUE(sentinel.hold_until(Clock::now() + std::chrono::milliseconds(1)));
  EXPECT_EQ(watched.wait(Deadline::seconds(30)).signal, SIGKILL);
  EXPECT_FALSE(sentinel.hold_until(Clock::now() + hours(1))) << "for good";
  EXPECT_FALSE(sentinel.hold_until(Clock::now() + hours(1)));
  EXPECT_FALSE(forgotten.poll());
}

// The agent may wake before the sentinel does.
TEST(Sentinel, AnAgentThatIsLateDoesNotHoldThemAnyMore) {
  for (const bool sleep_counts : {true, false}) {
    Subprocess watched = start_sleeper();
    Sentinel sentinel(1, sleep_counts);
    sentinel.watch(0, watched.pid());
    EXPECT_TRUE(sentinel.hold_until(Clock::now() + hours(1)));
    EXPECT_TRUE(sentinel.hold_until(Clock::now() - hours(1)));
    EXPECT_FALSE(sentinel.hold_until(Clock::now() + hours(1)));
    EXPECT_EQ(watched.wait(Deadline::seconds(30)).signal, SIGKILL);
  }
}

// A rank that was alone announced itself to no rank, and a newcomer does not count the time before
// it came.
TEST(Sentinel, WhoWasNotHeldIsNotEndedForTimePast) {
  Subprocess watched = start_sleeper();
  {
    Sentinel sentinel(1);
    sentinel.watch(0, watched.pid());
    EXPECT_TRUE(sentinel.hold_until(std::nullopt));
    EXPECT_TRUE(sentinel.hold_until(Clock::now() - hours(1)));
    EXPECT_TRUE(sentinel.hold_until(Clock::now() + hours(1))) << "from now on they are";
  }
  EXPECT_FALSE(watched.poll());
}

TEST(Sentinel, WhoIsHeldIsLeftAlone) {
  Subprocess watched = start_sleeper();
  {
    Sentinel sentinel(1);
    sentinel.watch(0, watched.pid());
    EXPECT_TRUE(sentinel.hold_until(Clock::now() + hours(1)));
    EXPECT_TRUE(sentinel.hold_until(std::nullopt));
    EXPECT_TRUE(sentinel.hold_until(Clock::now() + hours(1)));
  }
  EXPECT_FALSE(watched.poll()) << "its agent has dismissed it";
}

}  // namespace sentinel_test
}  // namespace lockstep::inline v0::launch
