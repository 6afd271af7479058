#include "lockstep/cli/doctor/live.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::inline v0::cli::live_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;  // a tick is a nanosecond here
constexpr int64_t kNow = 100 * kSecond;

// A job whose ranks are read at second 100.
class Job {
 public:
  explicit Job(int ranks) : ranks_(static_cast<size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      trace::TraceFile& rank = ranks_[static_cast<size_t>(r)];
      rank.rank = r;
      rank.world_size = ranks;
      rank.pid = 100 + static_cast<uint32_t>(r);
      rank.entered = {1, 1};
      rank.now = {kNow, kNow};
    }
  }
  // The next call of a rank, in seconds; ended 0: it is inside.
  void call(int rank, double begun, double ended, uint32_t group = 7) {
    trace::CallRecord record;
    auto& calls = ranks_[static_cast<size_t>(rank)].calls;
    record.sequence = 1;
    for (const auto& before : calls)
      if (before.group == group) record.sequence = before.sequence + 1;
    record.group = group;
    record.begun = static_cast<uint64_t>(begun * kSecond);
    record.ended = static_cast<uint64_t>(ended * kSecond);
    std::string("all_reduce").copy(record.op, sizeof record.op);
    calls.push_back(record);
  }
  LiveReport look(double seconds = 10) const { return look_live(ranks_, seconds); }

 private:
  std::vector<trace::TraceFile> ranks_;
};

// 20 steps of half a second up to now; the rank `late` comes 0.3 s after the others.
Job steps(int late) {
  Job job(4);
  for (int step = 0; step < 20; ++step) {
    const double begin = 90 + 0.5 * step;
    for (int r = 0; r < 4; ++r)
      job.call(r, begin + 0.1 + 0.0001 * r + (r == late ? 0.3 : 0), begin + 0.41);
  }
  return job;
}

TEST(Live, TheRankThatTheOthersWaitForIsNamed) {
  const LiveReport report = steps(1).look();
  ASSERT_TRUE(report.straggler);
  EXPECT_EQ(*report.straggler, 1);
  EXPECT_NEAR(report.rows[1].awaited, 0.6, 0.02);
  EXPECT_NEAR(report.rows[1].late, 0.3, 0.001);
  EXPECT_EQ(report.rows[0].awaited, 0);
  EXPECT_NEAR(report.since, 9.9, 0.02);
  const std::string text = format_live(report);
  EXPECT_THAT(text, HasSubstr("4 of 4 ranks are on this host; the last 9.9 s:\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 is late: the others wait for it 61 % of the time, 0.300 s a "
                              "call, for 9.9 s now\n"));
}

TEST(Live, NobodyIsWhereAllComeTogether) {
  const LiveReport report = steps(-1).look();
  EXPECT_FALSE(report.straggler);
  EXPECT_THAT(format_live(report), Not(HasSubstr("is late")));
  EXPECT_FALSE(Job(3).look().straggler) << "no calls yet";
  EXPECT_FALSE(look_live({}, 10).straggler);
}

TEST(Live, RanksThatTakeTurnsAreNoStragglers) {
  Job job(3);
  for (int step = 0; step < 30; ++step)
    for (int r = 0; r < 3; ++r) {
      const double begin = 90 + 0.3 * step;
      job.call(r, begin + (r == step % 3 ? 0.2 : 0), begin + 0.2);
    }
  EXPECT_FALSE(job.look().straggler);
}

TEST(Live, SinceIsAsLongAsItIsAlwaysTheSame) {
  Job job(2);
  for (int step = 0; step < 40; ++step) {
    const double begin = 80 + 0.5 * step;
    const int late = step < 20 ? 0 : 1;
    for (int r = 0; r < 2; ++r) job.call(r, begin + (r == late ? 0.3 : 0), begin + 0.31);
  }
  const LiveReport report = job.look();
  ASSERT_TRUE(report.straggler);
  EXPECT_EQ(*report.straggler, 1);
  EXPECT_NEAR(report.since, 10, 0.01);
}

TEST(Live, BucketsThatAreUnderWayTogetherCountOnce) {
  Job job(2);
  for (int step = 0; step < 10; ++step)
    for (int bucket = 0; bucket < 5; ++bucket)
      for (int r = 0; r < 2; ++r)
        job.call(r, 90 + step + 0.01 * bucket + (r == 1 ? 0.5 : 0), 90.6 + step);
  const LiveReport report = job.look();
  EXPECT_NEAR(report.rows[1].awaited, 0.54, 0.01);
}

TEST(Live, ARankThatDoesNotComeIsLateWhileItIsAwaited) {
  Job job(3);
  for (int r = 0; r < 3; ++r) job.call(r, 90, 90.001);
  job.call(0, 94, 0);
  job.call(2, 95, 0);
  const LiveReport report = job.look();
  ASSERT_TRUE(report.straggler);
  EXPECT_EQ(*report.straggler, 1);
  EXPECT_NEAR(report.rows[1].late, 5, 0.01);
  EXPECT_EQ(report.rows[0].state, "inside");
  EXPECT_NEAR(*report.rows[0].seconds, 6, 0.01);
  EXPECT_EQ(report.rows[1].state, "returned");
}

TEST(Live, GroupsOfSomeRanksDoNotMixWithOthers) {
  Job job(4);
  for (int step = 0; step < 20; ++step) {
    const double begin = 90 + 0.5 * step;
    // Two pairs of ranks are independent, and late at different times.
    for (const int r : {0, 1}) job.call(r, begin, begin + 0.001, 1);
    for (const int r : {2, 3}) job.call(r, begin + 0.25, begin + 0.251, 2);
  }
  EXPECT_FALSE(job.look().straggler);
}

}  // namespace lockstep::inline v0::cli::live_test
