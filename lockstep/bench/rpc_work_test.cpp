#include "lockstep/bench/rpc_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "lockstep/bench/rpc_sockets.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::bench::rpc_work_test {
namespace {

// A caller without a server, whose answers are right or wrong.
class Here final : public RpcCaller {
 public:
  explicit Here(int64_t error = 0) : error_(error) {}
  int64_t add(int64_t a, int64_t b) override {
    ++calls;
    return a + b + error_;
  }
  int64_t add_many(int64_t first, int64_t n) override {
    int64_t sum = error_;
    for (int64_t i = 0; i < n; ++i) {
      sum += first + i + 1;
      ++calls;
    }
    const MutexLock lock(mutex_);
    threads.insert(std::this_thread::get_id());
    return sum;
  }
  void prepare(int64_t elements) override { prepared = elements; }
  void fill(float value) override { value_ = value; }
  double send() override { return 3.0 * value_ + static_cast<double>(error_); }

  std::atomic<int64_t> calls = 0;
  std::set<std::thread::id> threads;
  int64_t prepared = 0;

 private:
  Mutex mutex_;
  int64_t error_;
  float value_ = 0;
};

TEST(RpcWork, TasksAndTurnsComeBackFromTheirLines) {
  const RpcTask task = parse_rpc_task(to_line(RpcTask{
      .what = RpcWorkload::kFlight, .turn_ms = 7.5, .calls = 12, .threads = 3, .bytes = 44}));
  EXPECT_EQ(task.what, RpcWorkload::kFlight);
  EXPECT_EQ(task.turn_ms, 7.5);
  EXPECT_EQ(task.calls, 12);
  EXPECT_EQ(task.threads, 3);
  EXPECT_EQ(task.bytes, 44);
  const RpcTurn turn = parse_rpc_turn(to_line(RpcTurn{.operations = 3, .p50_us = 2, .p99_us = 4}));
  EXPECT_EQ(turn.operations, 3);
  EXPECT_EQ(turn.p50_us, 2);
  EXPECT_EQ(turn.p99_us, 4);
  for (const char* bad : {"", "nonsense", "{}", R"({"operations": 3, "p50_us": 0})"})
    EXPECT_THROW(parse_rpc_turn(bad), InvalidArgument) << bad;
}

TEST(RpcWork, QuantilesAreThoseOfTheTimes) {
  std::vector<double> times;
  for (int i = 100; i >= 0; --i) times.push_back(i);
  const RpcTurn turn = make_rpc_turn(times);
  EXPECT_EQ(turn.operations, 101);
  EXPECT_DOUBLE_EQ(turn.p50_us, 50);
  EXPECT_DOUBLE_EQ(turn.p99_us, 99);
}

TEST(RpcWork, AFlightIsSharedByItsThreads) {
  Here here;
  const RpcTurn turn =
      run_rpc_task(here, {.what = RpcWorkload::kFlight, .calls = 1003, .threads = 4});
  EXPECT_EQ(turn.operations, 1);
  EXPECT_EQ(here.calls, 1003 + 1003 / 50);  // with the calls that warm up
  EXPECT_GT(here.threads.size(), 1u);
}

TEST(RpcWork, ATurnLastsAsLongAsItIsAsked) {
  Here here;
  EXPECT_GE(run_rpc_task(here, {.what = RpcWorkload::kSmall, .turn_ms = 1}).operations, 20);
  const RpcTurn sent =
      run_rpc_task(here, {.what = RpcWorkload::kTensor, .turn_ms = 1, .bytes = 400});
  EXPECT_GE(sent.operations, 3);
  EXPECT_EQ(here.prepared, 100);
}

TEST(RpcWork, WrongAnswersAreFound) {
  Here wrong(1);
  for (const RpcWorkload what : {RpcWorkload::kSmall, RpcWorkload::kFlight, RpcWorkload::kTensor})
    EXPECT_THROW(run_rpc_task(wrong, {.what = what, .turn_ms = 1, .calls = 100}), Error);
}

TEST(RpcWork, SocketsMoveNumbersAndTensors) {
  for (const char* variant : {"unix", "tcp"}) {
    const RpcEndpoint place{.listen = "", .variant = variant};
    const auto server = socket_sides().serve(place);
    {
      const auto caller = socket_sides().connect(place, server->address());
      EXPECT_EQ(caller->add(40, 2), 42);
      caller->prepare(1001);
      caller->fill(2.5F);
      EXPECT_EQ(caller->send(), 7.5);
    }
  }
  const auto copy = memcpy_sides().connect({}, "");
  copy->prepare(5);
  copy->fill(2);
  EXPECT_EQ(copy->send(), 6);
}

}  // namespace
}  // namespace lockstep::inline v0::bench::rpc_work_test
