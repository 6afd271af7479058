// Traces of real ranks, written by the agent.
#include <signal.h>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/launch_test_support.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0::launch {
namespace trace_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::HasSubstr;
using testing::Not;

class TraceMpTest : public testing::Test {
 protected:
  TraceMpTest() { ::setenv("LOCKSTEP_TRACE_DIR", (folder_ / "traces").c_str(), 1); }
  ~TraceMpTest() override { ::unsetenv("LOCKSTEP_TRACE_DIR"); }
  std::vector<trace::TraceFile> traces() const { return trace::read_traces(folder_ / "traces"); }
  bool any() const { return std::filesystem::exists(folder_ / "traces"); }

 private:
  TestDirectory folder_;
};

TEST_F(TraceMpTest, AKilledRankLeavesItsTraceAndTheOthersDo) {
  const Ended ended = run({"nproc", "3", "grace", "10000"}, {program(), "rank", "die"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("[lockstep] traces of ranks 0 to 2 in "));
  const std::vector<trace::TraceFile> found = traces();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_THAT(found[0].reason, HasSubstr("rank 1 killed by SIGKILL"));
  EXPECT_EQ(found[1].world_size, 3);
  EXPECT_GT(found[1].pid, 0u);
  ASSERT_EQ(found[1].calls.size(), 1u);
  EXPECT_EQ(trace::describe(found[1].calls[0]), "all_reduce sum float32 x 10 at train.cpp:3");
  EXPECT_EQ(found[1].calls[0].ended, 0u) << "it was inside";
}

TEST_F(TraceMpTest, ASignalWritesThemAndTheJobGoesOn) {
  Running agent({program(), "run", "nproc", "2", "--", program(), "rank", "stay"});
  agent.await_output("pid ", 2);
  for (const auto& [signal, name] : {std::pair(SIGUSR1, "SIGUSR1"), {SIGUSR2, "SIGUSR2"}}) {
    agent.process().signal(signal);
    const Deadline deadline = Deadline::seconds(20);
    // The former traces are removed while new ones are written.
    const auto written = [&, reason = name] {
      if (!any()) return false;
      try {
        const auto found = traces();
        return found.size() == 2 && found[0].reason == reason && found[1].reason == reason;
      } catch (const std::exception&) {
        return false;
      }
    };
    while (!written() && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(written()) << name;
  }
  // The ranks do not handle the signals, and stay alive.
  EXPECT_FALSE(agent.process().poll().has_value());
  agent.process().signal(SIGTERM);
  EXPECT_EQ(agent.finish(), 128 + SIGTERM);
  EXPECT_EQ(traces()[0].reason, "SIGTERM to lockstep run");
}

TEST_F(TraceMpTest, NothingIsWrittenWhenAllIsWell) {
  const Ended ended = run({"nproc", "2"}, {program(), "rank", "meet"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_FALSE(any());
  EXPECT_EQ(ended.err, "");
}

TEST_F(TraceMpTest, AFolderThatCannotBeIsSaidAndTheJobEndsAsItWould) {
  ::setenv("LOCKSTEP_TRACE_DIR", "/proc/no/such/folder", 1);
  const Ended ended = run({"nproc", "2", "grace", "10000"}, {program(), "rank", "die"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              HasSubstr("[lockstep] no traces written: cannot make /proc/no/such/folder"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1 of 2 failed first"));
}

}  // namespace trace_mp_test
}  // namespace lockstep::inline v0::launch
