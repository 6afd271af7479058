// Ranks that are processes, on two hosts, which are network namespaces of this machine.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/hosts_test.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/named_file.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep::inline v0::timeline_mp_test {
namespace {

using testing::HostsTest;
using testing::places;

class HostTimeline : public HostsTest {};

TEST_F(HostTimeline, RanksOfTwoHostsAreInOneFile) {
  make_hosts(2);
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  run(places(2, 2), [&] {
    Communicator comm = init({.timeout = std::chrono::seconds(60)});
    Timeline timeline;
    timeline.start(comm);
    for (int step = 1; step <= 3; ++step) {
      const auto span = timeline.span("step", step);
      comm.all_reduce(at::ones({100'000}));
    }
    timeline.write(comm, path, "1:3");
    if (comm.rank() != 0) return;
    const auto trace = timeline::parse_file(read_named_file(path), path);
    EXPECT_EQ(trace.clock_error_ns, 0) << "both hosts have this machine's clock";
    std::map<int, int> steps, calls;
    for (const auto& event : trace.events) {
      steps[event.rank] += event.name == "step" ? 1 : 0;
      calls[event.rank] += event.category == timeline::kCollective ? 1 : 0;
    }
    EXPECT_EQ(steps, (std::map<int, int>{{0, 3}, {1, 3}, {2, 3}, {3, 3}}));
    EXPECT_EQ(calls, (std::map<int, int>{{0, 3}, {1, 3}, {2, 3}, {3, 3}}));
    // The k-th calls of all ranks have a moment in common, up to the error of two readings.
    std::map<int, std::vector<timeline::ReadEvent>> by_rank;
    for (const auto& event : trace.events)
      if (event.category == timeline::kCollective) by_rank[event.rank].push_back(event);
    for (size_t k = 0; k < 3; ++k) {
      int64_t latest_begin = INT64_MIN, first_end = INT64_MAX;
      for (const auto& [rank, events] : by_rank) {
        latest_begin = std::max(latest_begin, events[k].begin_ns);
        first_end = std::min(first_end, events[k].end_ns);
      }
      EXPECT_LE(latest_begin, first_end + 10'000);
    }
  });
}

// The most memory of this process since reset_peak(), in bytes.
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}
int64_t peak() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

TEST(TimelineMemory, RankZeroHoldsThePartOfOneRankAtATime) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::expect_ranks(5, [&](Communicator& comm) {
    Timeline timeline({.capacity = 60'000});
    const auto record = [&] {
      timeline.start(comm);
      for (int i = 0; comm.rank() > 0 && i < 60'000; ++i)
        const auto span = timeline.span("a name that fills its forty-seven bytes, nearly", i);
    };
    record();
    timeline.write(comm, path);  // the engine's own buffers are in memory afterwards
    record();
    comm.barrier();
    reset_peak();
    const int64_t before = peak();
    timeline.write(comm, path);
    if (comm.rank() != 0) return;
    const auto all = static_cast<int64_t>(std::filesystem::file_size(path));
    EXPECT_GT(all, 20'000'000) << "of four ranks";
    EXPECT_LT(peak() - before, all * 3 / 4);
  });
}

// As on a full disk: the file may have its first half.
TEST(TimelineWriting, AFileThatCannotBeWrittenToItsEndIsAnErrorOnAllRanks) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::expect_ranks(3, [&](Communicator& comm) {
    Timeline timeline;
    const auto trace = [&] {
      timeline.start(comm);
      for (int i = 0; i < 10'000; ++i) const auto span = timeline.span("work", i);
      timeline.write(comm, path);
    };
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit small{2'000'000, limit.rlim_max};
    ::signal(SIGXFSZ, SIG_IGN);
    if (comm.rank() == 0) ::setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(trace(), TimelineError);
    if (comm.rank() == 0) {
      EXPECT_EQ(dir.names(), std::vector<std::string>()) << "there is no part of it";
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    trace();
    if (comm.rank() != 0) return;
    EXPECT_GT(std::filesystem::file_size(path), small.rlim_cur);
    EXPECT_EQ(timeline::parse_file(read_named_file(path), path).events.size(), 30'000U);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::timeline_mp_test
