#include "lockstep/timeline/call_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::inline v0::timeline::call_events_test {

using ::testing::Contains;
using ::testing::Not;
using ::testing::Pair;

// A tick is a nanosecond.
const TickClock kClock({.ticks = 0, .ns = 0}, {.ticks = 1'000'000, .ns = 1'000'000});
constexpr Window kWindow{.begun = 1000, .ended = 9000};

trace::KeptCall call(uint64_t begun, uint64_t ended, uint64_t waited = 0) {
  trace::CallRecord record;
  record.sequence = 7;
  record.begun = begun;
  record.ended = ended;
  record.elements = 10;
  std::string("all_reduce").copy(record.op, sizeof record.op - 1);
  std::string("float32").copy(record.dtype, sizeof record.dtype - 1);
  std::string("bucket 3 of step 17").copy(record.note, sizeof record.note - 1);
  return {.number = 0, .record = record, .waited = waited};
}

TEST(CallEvents, ACallAndTheWaitForIt) {
  const auto events = events_of({call(2000, 5000, 4000)}, kWindow, kClock);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].category, kWait);
  EXPECT_EQ(events[0].track, TrackKind::kWaits);
  EXPECT_EQ(events[0].begin_ns, 4000);
  EXPECT_EQ(events[0].end_ns, 5000);
  EXPECT_EQ(events[1].category, kCollective);
  EXPECT_EQ(events[1].name, "all_reduce: bucket 3 of step 17");
  EXPECT_EQ(events[1].begin_ns, 2000);
  EXPECT_EQ(events[1].end_ns, 5000);
  EXPECT_THAT(events[1].numbers, Contains(Pair("bytes", 40)));
  EXPECT_THAT(events[1].numbers, Contains(Pair("call", 7)));
}

TEST(CallEvents, NobodyWaitedForWhatEndedBefore) {
  EXPECT_EQ(events_of({call(2000, 5000)}, kWindow, kClock).size(), 1U);
  EXPECT_EQ(events_of({call(2000, 5000, 6000)}, kWindow, kClock).size(), 1U);
}

TEST(CallEvents, AreCutToTheWindow) {
  EXPECT_TRUE(events_of({call(100, 900), call(9000, 9500)}, kWindow, kClock).empty());
  const auto events = events_of({call(500, 2000, 600), call(8000, 0)}, kWindow, kClock);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].begin_ns, 1000);
  EXPECT_EQ(events[1].begin_ns, 1000);
  EXPECT_THAT(events[1].numbers, Contains(Pair("begun_before", 1)));
  EXPECT_EQ(events[2].begin_ns, 8000);
  EXPECT_EQ(events[2].end_ns, 9000);
  EXPECT_THAT(events[2].numbers, Contains(Pair("pending", 1)));
  EXPECT_THAT(events[2].numbers, Not(Contains(Pair("begun_before", 1))));
}

TEST(CallEvents, ACallWhoseCommunicatorBrokeEndsThere) {
  trace::KeptCall broken = call(2000, 0, 3000), before = call(300, 0);
  broken.abandoned = 5000;
  before.abandoned = 900;
  const auto events = events_of({before, broken}, kWindow, kClock);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].category, kWait);
  EXPECT_EQ(events[0].end_ns, 5000);
  EXPECT_EQ(events[1].end_ns, 5000);
  EXPECT_THAT(events[1].numbers, Contains(Pair("abandoned", 1)));
  EXPECT_THAT(events[1].numbers, Not(Contains(Pair("pending", 1))));
}

TEST(CallEvents, MessagesAndRemoteCallsHaveTheirTracks) {
  trace::KeptCall send = call(2000, 3000);
  send.record.moving = 1;
  send.record.peer = 4;
  trace::KeptCall remote = call(2000, 3000);
  remote.record.moving = 3;
  const auto events = events_of({send, remote}, kWindow, kClock);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].track, TrackKind::kMessages);
  EXPECT_THAT(events[0].numbers, Contains(Pair("peer", 4)));
  EXPECT_EQ(events[1].track, TrackKind::kRemote);
}

TEST(CallEvents, SpansKeepThreadAndNumber) {
  Span step;
  step.begun = 10;
  step.ended = 30;
  step.number = 5;
  put_name("step", step.name);
  Span other = step;
  other.thread = 2;
  other.number = -1;
  other.kind = SpanKind::kOperator;
  const auto events = events_of({step, other}, kClock);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].name, "step");
  EXPECT_EQ(events[0].category, kMarked);
  EXPECT_EQ(events[0].track, TrackKind::kLoop);
  EXPECT_THAT(events[0].numbers, Contains(Pair("number", 5)));
  EXPECT_EQ(events[1].category, kOperator);
  EXPECT_EQ(events[1].track, TrackKind::kThread);
  EXPECT_EQ(events[1].thread, 2);
  EXPECT_TRUE(events[1].numbers.empty());
}

}  // namespace lockstep::inline v0::timeline::call_events_test
