// Ranks that are processes, on two hosts, which are network namespaces of this machine.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/comm/hosts_test.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/named_file.h"
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

}  // namespace
}  // namespace lockstep::inline v0::timeline_mp_test
