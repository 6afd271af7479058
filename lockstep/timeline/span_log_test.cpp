#include "lockstep/timeline/span_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace lockstep::inline v0::timeline::span_log_test {

TEST(SpanLog, KeepsWhatIsMarkedWhileItIsOn) {
  SpanLog log(8);
  {
    const ScopedSpan before(&log, "before");
  }
  log.start();
  {
    const ScopedSpan outer(&log, "step", 3);
    const ScopedSpan inner(&log, "forward");
  }
  log.stop();
  {
    const ScopedSpan after(&log, "after");
  }
  {
    const ScopedSpan nowhere(nullptr, "nowhere");
  }
  const auto spans = log.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].text(), "forward");
  EXPECT_EQ(spans[0].number, -1);
  EXPECT_EQ(spans[1].text(), "step");
  EXPECT_EQ(spans[1].number, 3);
  EXPECT_LE(spans[1].begun, spans[0].begun);
  EXPECT_LE(spans[0].ended, spans[1].ended);
  EXPECT_EQ(spans[0].thread, 0U);
}

TEST(SpanLog, LeavesOutWhatBeginsBeforeOrEndsBehind) {
  SpanLog log(8);
  log.start();
  {
    const ScopedSpan over_the_start(&log, "old");
    log.start();
    const ScopedSpan within(&log, "new");
  }
  {
    const ScopedSpan over_the_stop(&log, "late");
    log.stop();
  }
  const auto spans = log.spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].text(), "new");
}

TEST(SpanLog, CountsWhatFindsNoRoom) {
  SpanLog log(3);
  log.start();
  for (int i = 0; i < 5; ++i) const ScopedSpan span(&log, "x", i);
  EXPECT_EQ(log.spans().size(), 3U);
  EXPECT_EQ(log.spans().back().number, 2);
  EXPECT_EQ(log.lost(SpanKind::kMarked), 2U);
  log.start();
  EXPECT_EQ(log.lost(SpanKind::kMarked), 0U);
  EXPECT_TRUE(log.spans().empty());
}

TEST(SpanLog, OperatorsTakeNoRoomOfMarkedSpans) {
  SpanLog log(1, 2);
  log.start();
  for (int i = 0; i < 5; ++i) log.add("mm", ticks(), ticks(), -1, SpanKind::kOperator);
  {
    const ScopedSpan span(&log, "forward");
  }
  EXPECT_EQ(log.lost(SpanKind::kOperator), 3U);
  EXPECT_EQ(log.lost(SpanKind::kMarked), 0U);
  ASSERT_EQ(log.spans().size(), 3U);
  EXPECT_EQ(log.spans()[0].text(), "forward");
}

TEST(SpanLog, CutsNamesBetweenCharacters) {
  SpanLog log(4);
  log.start();
  std::string name(46, 'a');
  name += "训练";
  {
    const ScopedSpan span(&log, name);
  }
  EXPECT_EQ(log.spans().at(0).text(), std::string(46, 'a'));
}

TEST(SpanLog, ThreadsHaveNumbers) {
  SpanLog log(10000);
  log.start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) const ScopedSpan span(&log, "work", i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  {
    const ScopedSpan own(&log, "own");
  }
  const auto spans = log.spans();
  ASSERT_EQ(spans.size(), 4001U);
  std::array<int64_t, 5> next = {};
  for (const Span& span : spans) {
    ASSERT_LT(span.thread, 5U);
    if (span.text() == "own") {
      EXPECT_EQ(span.thread, 0U);
      continue;
    }
    ASSERT_NE(span.thread, 0U);
    EXPECT_EQ(span.number, next[span.thread]++) << "a thread's spans are in order";
  }
}

}  // namespace lockstep::inline v0::timeline::span_log_test
