#include "lockstep/timeline/timeline.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/named_file.h"
#include "lockstep/device/fake_nvtx_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/overlap.h"
#include "lockstep/timeline/ranks_clock.h"

namespace lockstep::inline v0::timeline_test {

using ::testing::HasSubstr;
using timeline::ReadEvent;
using timeline::ReadTrace;

ReadTrace read(const std::string& path) {
  return timeline::parse_file(read_named_file(path), path);
}

std::vector<ReadEvent> named(const ReadTrace& trace, int rank, const std::string& name) {
  std::vector<ReadEvent> found;
  for (const ReadEvent& event : trace.events)
    if (event.rank == rank && event.name == name) found.push_back(event);
  return found;
}

TEST(Timeline, AllRanksInOneFile) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(3, [&](Communicator& comm) {
    Timeline timeline;
    comm.all_reduce(at::ones({1000}));  // before it begins
    timeline.start(comm);
    for (int step = 1; step <= 2; ++step) {
      const auto whole = timeline.span("step", step);
      Work work = [&] {
        const auto span = timeline.span("backward");
        return comm.iall_reduce(at::ones({1000}));
      }();
      work.wait();
      timeline.collect();
    }
    timeline.stop();
    comm.barrier();  // after its end
    timeline.write(comm, path, "1:2");
  });
  const ReadTrace trace = read(path);
  EXPECT_EQ(trace.steps, "1:2");
  EXPECT_EQ(trace.lost_calls, 0);
  EXPECT_EQ(trace.lost_spans, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const auto steps = named(trace, rank, "step"), calls = named(trace, rank, "all_reduce");
    const auto backward = named(trace, rank, "backward");
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[0].step, 1);
    EXPECT_EQ(steps[1].step, 2);
    ASSERT_EQ(backward.size(), 2U);
    EXPECT_TRUE(named(trace, rank, "barrier").empty());
    int collectives = 0;
    for (const ReadEvent& call : calls) {
      collectives += call.category == timeline::kCollective ? 1 : 0;
      // Within a step, except for the error of the clock's two readings.
      EXPECT_GE(call.begin_ns, steps[0].begin_ns - 1000);
      EXPECT_LE(call.end_ns, steps[1].end_ns + 1000);
    }
    EXPECT_EQ(collectives, 2);
    EXPECT_GE(steps[0].begin_ns, -1000) << "time 0 is when the first rank began";
  }
}

TEST(Timeline, ACallEndsWhenItEndsAndNotWhenItIsWaitedFor) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    timeline.start(comm);
    Work work = comm.iall_reduce(at::ones({10}));
    // Both move it until it is complete.
    for (int i = 0; i < 200; ++i) comm.progress();
    comm.barrier();
    {
      const auto span = timeline.span("own work");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    work.wait();
    timeline.write(comm, path);
  });
  const ReadTrace trace = read(path);
  for (int rank = 0; rank < 2; ++rank) {
    const auto own = named(trace, rank, "own work"), calls = named(trace, rank, "all_reduce");
    ASSERT_EQ(own.size(), 1U);
    ASSERT_EQ(calls.size(), 1U) << "nobody waited for it";
    EXPECT_EQ(calls[0].category, timeline::kCollective);
    EXPECT_LE(calls[0].end_ns, own[0].begin_ns + 1000);
  }
}

TEST(Timeline, AWaitIsWhereTheRankWaits) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    timeline.start(comm);
    Work work;
    if (comm.rank() == 0) work = comm.iall_reduce(at::ones({10}));
    if (comm.rank() == 1) {
      const auto span = timeline.span("late");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (comm.rank() == 1) work = comm.iall_reduce(at::ones({10}));
    work.wait();
    timeline.write(comm, path);
  });
  const ReadTrace trace = read(path);
  const auto late = named(trace, 1, "late");
  ASSERT_EQ(late.size(), 1U);
  int waits = 0;
  for (const ReadEvent& event : trace.events) {
    if (event.rank != 0 || event.category != timeline::kWait) continue;
    ++waits;
    EXPECT_GE(event.end_ns, late[0].end_ns - 1'000'000);
    EXPECT_GT(event.end_ns - event.begin_ns, 50'000'000) << "the other one was late by 100 ms";
  }
  EXPECT_EQ(waits, 1);
}

TEST(Timeline, TellsOfCallsThatWereOverwritten) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    timeline.start(comm);
    for (int i = 0; i < 600; ++i) comm.barrier();
    timeline.collect();
    for (int i = 0; i < 1324; ++i) comm.barrier();
    timeline.write(comm, path);
  });
  const ReadTrace trace = read(path);
  EXPECT_EQ(trace.lost_calls, 2 * 300);
  int barriers = 0;
  for (const ReadEvent& event : trace.events)
    barriers += event.category == timeline::kCollective ? 1 : 0;
  EXPECT_EQ(barriers, 2 * (600 + 1024));
}

TEST(Timeline, ACallThatWasOverwrittenWhilePendingHasNoEnd) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    timeline.start(comm);
    const at::Tensor message = at::ones({4});
    Work received;
    if (comm.rank() == 0) received = comm.irecv(message, 1);
    for (int i = 0; i < 3; ++i) {
      timeline.collect();
      for (int k = 0; k < 800; ++k) comm.barrier();
    }
    if (comm.rank() == 1) comm.send(message, 0);
    if (comm.rank() == 0) received.wait();
    timeline.write(comm, path);
  });
  const ReadTrace trace = read(path);
  EXPECT_EQ(trace.lost_calls, 1);
  EXPECT_TRUE(named(trace, 0, "recv").empty()) << "it would last to the end of the trace";
  EXPECT_EQ(named(trace, 1, "send").size(), 2U) << "the message, and the wait in it";
}

TEST(Timeline, ACallThatWasUnderWayIsCutAtTheStart) {
  const TestDirectory dir;
  const std::string path = dir / "trace.json";
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    const at::Tensor message = at::ones({4});
    comm.barrier();  // ended before
    Work received;
    if (comm.rank() == 0) received = comm.irecv(message, 1);
    timeline.start(comm);
    comm.barrier();
    if (comm.rank() == 1) comm.send(message, 0);
    if (comm.rank() == 0) received.wait();
    {
      const auto span = timeline.span("after");
    }
    timeline.write(comm, path);
  });
  const ReadTrace trace = read(path);
  EXPECT_EQ(trace.lost_calls, 0);
  const auto received = named(trace, 0, "recv"), after = named(trace, 0, "after");
  ASSERT_GE(received.size(), 1U);
  for (const ReadEvent& event : received) {
    EXPECT_GE(event.begin_ns, -1000) << "time 0 is when the first rank began";
    EXPECT_LE(event.end_ns, after.at(0).begin_ns + 1000);
  }
  EXPECT_EQ(named(trace, 0, "barrier").size(), 2U) << "the second, and the wait in it";
}

TEST(Timeline, ACallWhoseCommunicatorBrokeOrIsGoneIsNotUnderWay) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    const at::Tensor message = at::ones({4});
    Communicator broken = comm.duplicate(), later = comm.duplicate();
    Work never, not_yet;
    if (comm.rank() == 0) {
      never = broken.irecv(message, 1);
      broken.abort("the test breaks it");
    }
    timeline.start(comm);
    if (comm.rank() == 0) {
      not_yet = later.irecv(message, 1);
      later.abort("the test breaks it, too");
    }
    {
      const auto span = timeline.span("after");
    }
    timeline.write(comm, dir / "trace.json");
  });
  const ReadTrace trace = read(dir / "trace.json");
  EXPECT_EQ(trace.lost_calls, 0);
  const auto received = named(trace, 0, "recv"), after = named(trace, 0, "after");
  ASSERT_EQ(received.size(), 1U) << "nobody can be waiting for the other";
  EXPECT_LE(received[0].end_ns, after.at(0).begin_ns + 1000);
}

TEST(Timeline, ItsCapacityBoundsCallsToo) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline({.capacity = 10});
    timeline.start(comm);
    for (int i = 0; i < 25; ++i) comm.barrier();
    timeline.write(comm, dir / "trace.json");
  });
  EXPECT_EQ(read(dir / "trace.json").lost_calls, 2 * 15);
}

TEST(Timeline, OperatorsAreSpansWhereTheyAreAskedFor) {
  const TestDirectory dir;
  for (const bool operators : {false, true}) {
    const std::string path = dir / (operators ? "with.json" : "without.json");
    testing::run_threads(1, [&](Communicator& comm) {
      Timeline timeline({.operators = operators});
      timeline.start(comm);
      {
        const auto span = timeline.span("forward");
        const at::Tensor weight = torch::ones({4, 4}, at::requires_grad());
        at::mm(weight, weight).sum().backward();
      }
      timeline.stop();
      const at::Tensor after = at::ones({2}).exp();
      timeline.write(comm, path);
    });
    const ReadTrace trace = read(path);
    EXPECT_EQ(named(trace, 0, "aten::exp").size(), 0U);
    const auto products = named(trace, 0, "aten::mm");
    EXPECT_EQ(products.size(), operators ? 3U : 0U) << "one forward, two backward";
    for (const ReadEvent& event : products) EXPECT_EQ(event.category, timeline::kOperator);
    EXPECT_EQ(named(trace, 0, "forward").size(), 1U);
  }
}

TEST(Timeline, ItBeginsAnew) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    for (const char* name : {"first", "second"}) {
      timeline.start(comm);
      {
        const auto span = timeline.span(name);
      }
      comm.barrier();
      timeline.write(comm, dir / std::string(name));
    }
  });
  const ReadTrace second = read(dir / "second");
  EXPECT_EQ(named(second, 0, "first").size(), 0U);
  EXPECT_EQ(named(second, 0, "second").size(), 1U);
}

TEST(Timeline, MistakesAndFaultsAreErrorsOnAllRanks) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline;
    const auto error_of = [&](const std::string& path) -> std::string {
      try {
        timeline.write(comm, path);
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    EXPECT_THAT(error_of(dir / "x.json"), HasSubstr("no rank has started the timeline"));
    timeline.start(comm);
    EXPECT_THAT(error_of(dir / "nowhere/x.json"), HasSubstr("nowhere/x.json"));
    // One rank alone: the file has its events.
    if (comm.rank() == 1) {
      timeline.start(comm);
      const auto span = timeline.span("alone");
    }
    EXPECT_EQ(error_of(dir / "one.json"), "no error");
  });
  const ReadTrace trace = read(dir / "one.json");
  EXPECT_EQ(named(trace, 0, "alone").size(), 0U);
  EXPECT_EQ(named(trace, 1, "alone").size(), 1U);
}

TEST(TimelineNvtx, NeedsALibtorchWithCuda) {
  if (device::has_nvtx()) GTEST_SKIP() << "this libtorch was built with CUDA";
  EXPECT_THROW(Timeline({.nvtx = true}), InvalidArgument);
  EXPECT_THROW(Timeline::check({.nvtx = true}), InvalidArgument);
  Timeline::check({.operators = true});
}

// The calls of a rank's thread that go with a step.
void take_step(Timeline& timeline, Communicator& comm) {
  const auto step = timeline.span("step", 3);
  {
    const auto span = timeline.span("forward");
  }
  comm.all_reduce(at::ones({8}));
  Work work = [&] {
    const auto span = timeline.span("backward");
    return comm.iall_reduce(at::ones({8}), ReduceOp::kSum, call_note("bucket 0"));
  }();
  work.wait();
}

TEST(TimelineNvtx, SpansAndCallsAreRangesWhetherItIsOnOrNot) {
  const TestDirectory dir;
  const device::FakeNvtx nvtx;
  testing::run_threads(2, [&](Communicator& comm) {
    Timeline timeline({.nvtx = true});
    timeline.mark_calls(comm);
    timeline.mark_calls(comm);  // once more changes nothing
    take_step(timeline, comm);
    const std::vector<std::string> step{"step 3",
                                        "step 3/forward",
                                        "step 3/all_reduce",
                                        "step 3/backward",
                                        "step 3/backward/all_reduce: bucket 0",
                                        "step 3/wait: all_reduce"};
    EXPECT_EQ(nvtx.ranges(), step);
    timeline.start(comm);
    take_step(timeline, comm);
    std::vector<std::string> both = step;
    both.insert(both.end(), step.begin(), step.end());
    EXPECT_EQ(nvtx.ranges(), both);
    timeline.write(comm, dir / "trace.json");
  });
  EXPECT_EQ(nvtx.open(), 0U);
  EXPECT_EQ(named(read(dir / "trace.json"), 0, "step").size(), 1U) << "the first was not traced";
}

TEST(TimelineNvtx, ThereIsNoneWithoutItAndNoneAfterTheTimelineIsGone) {
  const device::FakeNvtx nvtx;
  testing::run_threads(1, [&](Communicator& comm) {
    Timeline plain;
    plain.mark_calls(comm);
    plain.start(comm);
    take_step(plain, comm);
    EXPECT_TRUE(nvtx.ranges().empty());
    {
      Timeline timeline({.nvtx = true});
      timeline.mark_calls(comm);
      comm.barrier();
      EXPECT_THAT(nvtx.ranges(), ::testing::ElementsAre("barrier"));
    }
    take_step(plain, comm);
    EXPECT_EQ(nvtx.ranges().size(), 1U);
  });
}

TEST(RanksClock, AnotherHostsClockIsMeasured) {
  constexpr int64_t kAhead = 3'600'000'000'000;
  testing::run_threads(3, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    const auto offset = timeline::measure_clock(
        comm, 0, 2, [&] { return timeline::monotonic_ns() + (comm.rank() == 2 ? kAhead : 0); });
    if (comm.rank() != 0) return;
    EXPECT_LE(std::abs(offset.ns - kAhead), offset.error_ns);
    EXPECT_GT(offset.error_ns, 0);
  });
}

TEST(RanksClock, RanksOfOneHostShareIt) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto offset = timeline::clock_of_rank(comm);
    EXPECT_EQ(offset.ns, 0);
    EXPECT_EQ(offset.error_ns, 0);
  });
}

}  // namespace lockstep::inline v0::timeline_test
