#include "lockstep/timeline/span_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <set>
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

TEST(SpanLog, EachOfManyThreadsHasItsOwnNumber) {
  constexpr size_t kThreads = 300;
  SpanLog log(2 * kThreads, 1);
  log.start();
  std::vector<std::thread> threads;
  std::latch all(kThreads);  // so that no thread takes over the identity of one that has ended
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      {
        const ScopedSpan span(&log, "work", static_cast<int64_t>(t));
      }
      all.arrive_and_wait();
      const ScopedSpan span(&log, "more work", static_cast<int64_t>(t));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<uint32_t, std::set<int64_t>> by_number;
  for (const Span& span : log.spans()) by_number[span.thread].insert(span.number);
  EXPECT_EQ(by_number.size(), kThreads);
  EXPECT_EQ(by_number.begin()->first, 1U) << "0 is the thread that started the log";
  EXPECT_EQ(by_number.rbegin()->first, kThreads);
  for (const auto& [number, of_thread] : by_number) EXPECT_EQ(of_thread.size(), 1U);
}

TEST(SpanLog, ThreadsAreNumberedByTheirFirstSpansOfEitherKind) {
  SpanLog log(4, 4);
  log.start();
  std::latch all(3);
  std::vector<std::thread> threads;
  const auto add_on_a_thread = [&](const char* name, SpanKind kind) {
    const size_t before = log.spans().size();
    threads.emplace_back([&log, &all, name, kind] {
      log.add(name, ticks(), ticks(), -1, kind);
      all.arrive_and_wait();
    });
    while (log.spans().size() == before) std::this_thread::yield();
  };
  add_on_a_thread("mm", SpanKind::kOperator);
  add_on_a_thread("first", SpanKind::kMarked);
  add_on_a_thread("second", SpanKind::kMarked);
  for (std::thread& thread : threads) thread.join();
  const auto spans = log.spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].text(), "first");
  EXPECT_EQ(spans[1].text(), "second");
  EXPECT_LT(spans[0].thread, spans[1].thread);
  EXPECT_EQ(spans[2].thread, 1U) << "its span was the first, though operators are listed last";
}

}  // namespace lockstep::inline v0::timeline::span_log_test
