#include "lockstep/rpc/agent.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <numeric>
#include <optional>
#include <thread>

#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/rpc_test_support.h"

namespace lockstep::inline v0::rpc {
namespace {

struct Point {
  double x = 0, y = 0;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("x", x);
    visit("y", y);
  }
};

Future<int> later(int x) {
  const int twice = co_await Agent::current().rpc_async<int>("b", "twice", x);
  co_return twice + 1;
}

Registry functions() {
  Registry registry;
  registry.add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
  registry.add("twice", [](int x) { return 2 * x; }, {.quick = true});
  registry.add("norm", [](const Point& p) { return std::hypot(p.x, p.y); });
  registry.add("nothing", [] {});
  registry.add("fails", [](const std::string& text) { throw DataError(text); });
  registry.add("torch_fails", [](const at::Tensor& a) { return a.view({7}); });
  registry.add("sleep", [](double seconds) {
    const auto end = Deadline::seconds(seconds);
    while (!end.expired() && !cancelled())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return cancelled();
  });
  registry.add("who", [] { return caller(); });
  registry.add("left", [] { return call_deadline()->remaining().count() / 1e9; });
  registry.add("nested", [](const std::string& name, double seconds) {
    return Agent::current().rpc_sync<bool>(name, "sleep", seconds);
  });
  registry.add("later", later);
  return registry;
}

class AgentTest : public ::testing::Test {
 protected:
  Town town_;
  Agent a_ = town_.agent("a", functions());
  Agent b_ = town_.agent("b", functions());
};

TEST_F(AgentTest, CallsWithEveryKindOfArgument) {
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3});
  EXPECT_TRUE(a_.rpc_sync<at::Tensor>("b", "matmul", x, x.t()).equal(x.matmul(x.t())));
  EXPECT_EQ(a_.rpc_sync<int64_t>("b", "twice", 21), 42);
  EXPECT_EQ(a_.rpc_sync<double>("b", "norm", Point{3, 4}), 5);
  a_.rpc_sync("b", "nothing");
  EXPECT_EQ(a_.rpc_sync<std::string>("b", "who"), "a");
  EXPECT_EQ(a_.rpc_sync<std::string>("a", "who"), "a");  // to itself
  EXPECT_EQ(a_.rpc_sync<int>("b", "later", 5), 11);
}

TEST_F(AgentTest, LargeTensorsArrive) {
  for (const int64_t size : {1 << 10, 1 << 16, (1 << 16) + 1, 1 << 22}) {
    const at::Tensor x = at::rand({size / 64, 64});
    EXPECT_TRUE(a_.rpc_sync<at::Tensor>("b", "matmul", x, at::eye(64)).equal(x)) << size;
  }
}

TEST_F(AgentTest, ErrorsSayWhoWhatAndWhere) {
  EXPECT_THAT(
      message_of([&] { a_.rpc_sync("b", "fails", "no data"); }),
      ::testing::AllOf(::testing::HasSubstr("'fails' on 'b'"),
                       ::testing::HasSubstr("lockstep::DataError"), ::testing::HasSubstr("no data"),
                       ::testing::HasSubstr("agent_test.cpp:")));
  EXPECT_THAT(
      message_of([&] { a_.rpc_sync<at::Tensor>("b", "torch_fails", at::ones({3})); }),
      ::testing::AllOf(::testing::HasSubstr("c10::Error"), ::testing::HasSubstr("shape '[7]'")));
  EXPECT_THAT(message_of([&] { a_.rpc_sync("b", "unknown"); }),
              ::testing::HasSubstr("'unknown' on 'b' is not registered there"));
  EXPECT_THAT(message_of([&] { a_.rpc_sync<at::Tensor>("b", "matmul", at::ones({1}), 1); }),
              ::testing::AllOf(::testing::HasSubstr("is (tensor, tensor) -> tensor"),
                               ::testing::HasSubstr("called as (tensor, int) -> tensor")));
  EXPECT_THROW(a_.rpc_sync<int>("b", "twice", at::ones({1})), RemoteError);
  EXPECT_EQ(a_.rpc_sync<int>("b", "twice", 1), 2);  // the link works as before
}

TEST_F(AgentTest, FuturesThenAndErrors) {
  auto f = a_.rpc_async<int>("b", "twice", 4).then([](int x) { return x + 1; });
  EXPECT_EQ(f.get(), 9);
  auto chained = a_.rpc_async<int>("b", "twice", 4).then([this](int x) {
    return a_.rpc_async<int>("b", "twice", x);
  });
  static_assert(std::is_same_v<decltype(chained), Future<int>>);
  EXPECT_EQ(chained.get(), 16);
  auto bad = a_.rpc_async("b", "fails", "x").then([] { return 1; });
  EXPECT_THROW(bad.get(), RemoteError);
  auto thrown =
      a_.rpc_async<int>("b", "twice", 4).then([](int) -> int { throw DataError("here"); });
  EXPECT_THROW(thrown.get(), DataError);
}

TEST_F(AgentTest, DeadlinesFireInTimeAndAreInherited) {
  // Within a tenth of the value. The fastest of several tries counts, because a busy machine may
  // wake a thread late.
  for (const double seconds : {0.1, 0.3}) {
    double soonest = 1e9;
    for (int i = 0; i < 20 && soonest > 1.1 * seconds; ++i) {
      const auto begin = Deadline::seconds(0);
      EXPECT_THAT(message_of([&] {
                    a_.to("b", {.timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                    std::chrono::duration<double>(seconds))})
                        .rpc_sync<bool>("sleep", 5.0);
                  }),
                  ::testing::AllOf(::testing::HasSubstr("'sleep' on 'b'"),
                                   ::testing::HasSubstr("has not returned within")));
      EXPECT_GE(begin.elapsed_seconds(), seconds);
      soonest = std::min(soonest, begin.elapsed_seconds());
    }
    EXPECT_LE(soonest, 1.1 * seconds);
  }
  using std::chrono::seconds;
  EXPECT_LT(a_.to("b", {.timeout = seconds(3)}).rpc_sync<double>("left"), 3);
  const auto begin = Deadline::seconds(0);
  EXPECT_THROW(
      a_.to("b", {.timeout = std::chrono::milliseconds(200)}).rpc_sync<bool>("nested", "a", 5.0),
      Timeout);
  EXPECT_LT(begin.elapsed_seconds(), 4) << "not the 5 s that the function takes";
  for (int i = 0; i < 200 && !(a_.pending_calls().empty() && b_.pending_calls().empty()); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(b_.pending_calls().empty()) << "the nested call ended with its caller's";
}

TEST_F(AgentTest, CancelTellsTheOtherEnd) {
  auto f = a_.rpc_async<bool>("b", "sleep", 30.0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(b_.pending_calls().size(), 1u);
  EXPECT_EQ(b_.pending_calls()[0].function, "sleep");
  f.cancel();
  EXPECT_THROW(f.get(), Cancelled);
  for (int i = 0; i < 200 && !b_.pending_calls().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(b_.pending_calls().empty());
}

TEST(Agent, CallsOfOneOrderRunInOrderOneByOne) {
  const Town town;
  std::vector<int> seen;
  std::atomic<int> inside{0}, most{0};
  Registry registry;
  registry.add("note", [&](int x) {
    most = std::max(most.load(), ++inside);
    seen.push_back(x);
    --inside;
  });
  Agent a = town.agent("a"), b = town.agent("b", std::move(registry));
  std::vector<Future<void>> all;
  for (int i = 0; i < 2000; ++i) all.push_back(a.to("b", {.order = 7}).rpc_async("note", i));
  wait_all(all);
  std::vector<int> wanted(2000);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(seen, wanted);
  EXPECT_EQ(most, 1);
}

// 10^5 calls. Half of each thread's calls are in order, each of them after the last one of that
// thread to that peer.
TEST(Agent, ManyThreadsAndPeersLoseNothingAndKeepOrder) {
  const Town town;
  constexpr int kPeers = 4, kThreads = 8, kCalls = 12'500;
  // Calls of one order do not run concurrently.
  std::array<std::array<int, kThreads>, kPeers> last{};
  std::atomic<int> out_of_order{0};
  std::vector<Agent> agents;
  for (int p = 0; p < kPeers; ++p) {
    Registry registry = functions();
    registry.add("in_order", [&out_of_order, &seen = last[p]](int thread, int i) {
      if (i <= std::exchange(seen[thread], i)) ++out_of_order;
      return 2 * i;
    });
    agents.push_back(town.agent("p" + std::to_string(p), std::move(registry)));
  }
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::vector<Future<int>> all;
      for (int i = 0; i < kCalls; ++i) {
        const std::string peer = "p" + std::to_string((t + i / 2) % kPeers);
        const Agent& agent = agents[t % kPeers];
        all.push_back(i % 2 ? agent.to(peer, {.order = static_cast<uint64_t>(t + 1)})
                                  .rpc_async<int>("in_order", t, i)
                            : agent.rpc_async<int>(peer, "twice", i));
      }
      for (auto& one : all) sum += one.get();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, int64_t{kThreads} * kCalls * (kCalls - 1));
  EXPECT_EQ(out_of_order, 0);
}

TEST(Agent, BadInputIsRefusedInOneLine) {
  const Town town;
  Agent a = town.agent("a", functions()), b = town.agent("b", functions());
  const auto one_line = [](const std::string& message) {
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_THAT(one_line(message_of([&] { a.rpc_sync<int>("b", "twice", std::string("x")); })),
              ::testing::AllOf(::testing::HasSubstr("'twice' on 'b', registered at"),
                               ::testing::HasSubstr("is (int) -> int"),
                               ::testing::HasSubstr("called as (string) -> int")));
  // The message is larger than allowed: nothing is sent, and later calls work as usual.
  const std::string huge(internal::kMostBody, 'x');
  EXPECT_THROW(a.rpc_sync("b", "fails", huge), InvalidArgument);
  EXPECT_THAT(one_line(message_of([&] { a.rpc_sync("b", "fails", huge); })),
              ::testing::AllOf(::testing::HasSubstr("'fails' on 'b'"),
                               ::testing::HasSubstr("bytes beside its tensors"),
                               ::testing::HasSubstr(std::to_string(internal::kMostBody))));
  EXPECT_EQ(a.rpc_sync<int>("b", "twice", 2), 4);
  EXPECT_TRUE(a.pending_calls().empty());
  EXPECT_THAT(one_line(message_of([&] {
                a.to("ghost", {.timeout = std::chrono::milliseconds(50)}).rpc_sync<int>("twice", 1);
              })),
              ::testing::AllOf(::testing::HasSubstr("'ghost' has not come within 0.05"),
                               ::testing::HasSubstr("is this its name?")));
}

// A nested call is not waited for once its caller has stopped waiting.
TEST_F(AgentTest, WhatIsNestedIsCancelledWithItsCaller) {
  auto f = a_.rpc_async<bool>("b", "nested", "a", 30.0);
  for (int i = 0; i < 2000 && a_.pending_calls().size() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(a_.pending_calls().size(), 2u) << "its own, and b's here";
  f.cancel();
  EXPECT_THROW(f.get(), Cancelled);
  for (int i = 0; i < 500 && !(a_.pending_calls().empty() && b_.pending_calls().empty()); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(a_.pending_calls().empty());
  EXPECT_TRUE(b_.pending_calls().empty());
}

// Its answer has arrived and waits for a worker to read its tensors: only the stop can end it.
TEST_F(AgentTest, AStoppedAgentEndsCallsWhoseAnswersWait) {
  std::promise<void> in, go;
  Registry registry;
  registry.add("block", [&] {
    in.set_value();
    go.get_future().wait();
  });
  Agent d = town_.agent("d", std::move(registry), {.workers = 1});
  const auto block = a_.rpc_async("d", "block");
  in.get_future().wait();
  const auto answer =
      d.rpc_async<at::Tensor>("b", "matmul", at::ones({600, 1}), at::ones({1, 600}));
  while (!answer.done() && !d.core()->reactor().busy()) std::this_thread::yield();
  const bool waits = !answer.done();
  auto stop = std::async(std::launch::async, [&d] { d.stop(); });
  const bool told = answer.wait_for(std::chrono::seconds(60));
  go.set_value();
  stop.get();
  if (!waits) GTEST_SKIP() << "this system lets no process read another's memory";
  ASSERT_TRUE(told);
  EXPECT_THROW(answer.get(), Cancelled);
}

// The callee hears nothing from its caller any more, but has a clock.
TEST_F(AgentTest, ACallWhoseTimeIsUpIsCancelled) {
  std::atomic<bool> seen{false};
  Registry registry;
  registry.add("late", [&] {
    const Deadline end = *call_deadline();
    while (!end.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = cancelled();
  });
  Agent c = town_.agent("c", std::move(registry));
  EXPECT_THROW(a_.to("c", {.timeout = std::chrono::milliseconds(50)}).rpc_sync("late"), Timeout);
  for (int i = 0; i < 500 && !c.pending_calls().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(seen);
}

TEST(Agent, APeerThatStopsFailsItsCallsAtOnceAndComesBack) {
  const Town town;
  Agent a = town.agent("a");
  {
    Agent b = town.agent("b", functions());
    auto f = a.rpc_async<bool>("b", "sleep", 30.0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    b.stop();
    const auto begin = Deadline::seconds(0);
    EXPECT_THROW(f.get(), PeerLost);
    EXPECT_LT(begin.elapsed_seconds(), 10) << "not the 30 s that the function takes";
  }
  EXPECT_THROW(a.to("b", {.timeout = std::chrono::milliseconds(300)}).rpc_sync<int>("twice", 1),
               Error);
  Agent b = town.agent("b", functions());
  EXPECT_EQ(a.rpc_sync<int>("b", "twice", 1), 2);
}

// A function that runs until its caller stops waiting, and a while longer.
struct Spin {
  Registry registry() {
    Registry registry;
    registry.add("spin", [this] {
      in.set_value();
      while (!cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ended = true;
    });
    return registry;
  }
  std::promise<void> in;
  std::atomic<bool> ended{false};
};

// The function that is being served keeps the inside of the agent, but none of it continues to run
// while the process ends.
TEST(Agent, ItsLastHandleWaitsForWhatIsBeingServed) {
  const Town town;
  const Agent a = town.agent("a");
  Spin spin;
  std::optional<Agent> b = town.agent("b", spin.registry());
  const auto f = a.rpc_async("b", "spin");
  spin.in.get_future().wait();
  b.reset();
  EXPECT_TRUE(spin.ended);
  EXPECT_THROW(f.get(), PeerLost);
}

// An agent drops the tasks that it has not started in the same way.
TEST(Coroutine, EndsWhereWhatWouldResumeItIsDropped) {
  struct Dropping final : internal::ValueState<int> {
    void execute(internal::Task task) override { task.reset(); }
  };
  auto state = std::make_shared<Dropping>();
  const auto gone = std::make_shared<int>(1);
  const auto wait = [](Future<int> other, std::shared_ptr<int> kept) -> Future<int> {
    co_return co_await other + *kept;
  };
  const Future<int> waiting = wait(Future<int>(state), gone);
  EXPECT_EQ(gone.use_count(), 2);
  ASSERT_TRUE(state->claim());
  state->store(1);
  state->finish(nullptr);
  EXPECT_EQ(gone.use_count(), 1) << "what it holds goes";
  EXPECT_THROW(waiting.get(), Cancelled);
}

// A callback of the end, on the thread that stops the agent, may stop it too; it would wait for
// itself.
TEST(Agent, WhatFollowsItsEndMayStopItAgain) {
  const Town town;
  Agent a = town.agent("a");
  Spin spin;
  const Agent b = town.agent("b", spin.registry());
  const auto f = a.rpc_async("b", "spin");
  double seconds = -1;
  f.when_done([&](const Future<void>&) {
    const Deadline begin = Deadline::seconds(0);
    a.shutdown();
    seconds = begin.elapsed_seconds();
  });
  a.stop();
  EXPECT_GE(seconds, 0);
  EXPECT_LT(seconds, 4) << "it waited out the 5 s of stop()";
}

// A thread that stops an agent while another one is stopping it waits for that, too.
TEST(Agent, ASecondStopWaitsForTheFirst) {
  const Town town;
  const Agent a = town.agent("a");
  Spin spin;
  Agent b = town.agent("b", spin.registry());
  const auto f = a.rpc_async("b", "spin");
  spin.in.get_future().wait();
  std::thread first([&] { b.stop(); });
  while (!b.core()->stopped()) std::this_thread::yield();
  b.stop();
  EXPECT_TRUE(spin.ended);
  b.shutdown();
  first.join();
}

// A function that ends because its agent stops has no result, however soon it ends: its return is
// not an answer to its caller.
TEST(Agent, WhatIsReturnedBecauseTheAgentStopsIsNoAnswer) {
  for (int i = 0; i < 50; ++i) {
    const Town town;
    Agent a = town.agent("a");
    std::atomic<bool> begun{false};
    Registry registry;
    registry.add("spin", [&] {
      begun = true;
      while (!cancelled()) continue;
      return true;
    });
    Agent b = town.agent("b", std::move(registry));
    auto f = a.rpc_async<bool>("b", "spin");
    while (!begun) std::this_thread::sleep_for(std::chrono::microseconds(50));
    b.stop();
    ASSERT_THROW(f.get(), PeerLost) << "time " << i;
  }
}

// The same holds for a call that ends because its deadline has passed, although the caller's own
// clock may be late.
TEST_F(AgentTest, WhatIsReturnedBehindTheDeadlineIsNoAnswer) {
  Registry registry;
  registry.add("spin", [] {
    while (!cancelled()) continue;
    return true;
  });
  registry.add("throw", [] {
    while (!cancelled()) continue;
    throw DataError("cancelled");
  });
  Agent c = town_.agent("c", std::move(registry));
  for (int i = 0; i < 100; ++i) {
    const auto to_c = a_.to("c", {.timeout = std::chrono::milliseconds(3)});
    EXPECT_THROW(to_c.rpc_sync<bool>("spin"), Timeout) << "time " << i;
    EXPECT_THROW(to_c.rpc_sync("throw"), Timeout) << "time " << i;
  }
}

TEST(Agent, BackPressureIsSaidInTheError) {
  const Town town;
  Agent b = town.agent("b", functions());
  Agent a = town.agent("a", {}, {.calls_in_flight = 2});
  auto one = a.rpc_async<bool>("b", "sleep", 1.0), two = a.rpc_async<bool>("b", "sleep", 1.0);
  EXPECT_THAT(message_of([&] {
                a.to("b", {.timeout = std::chrono::milliseconds(100)}).rpc_sync<int>("twice", 1);
              }),
              ::testing::AllOf(::testing::HasSubstr("2 calls to it are in flight"),
                               ::testing::HasSubstr("calls_in_flight")));
  EXPECT_EQ(a.rpc_sync<int>("b", "twice", 1), 2) << "there is room again";
}

TEST(Agent, RegistryRefusesWhatIsThere) {
  Registry registry = functions();
  EXPECT_THAT(message_of([&] { registry.add("twice", [] {}); }),
              ::testing::AllOf(::testing::HasSubstr("'twice' is registered already"),
                               ::testing::HasSubstr("agent_test.cpp")));
  EXPECT_THROW(registry.add("", [] {}), InvalidArgument);
  EXPECT_THROW(registry.add("rpc.x", [] {}), InvalidArgument);
  EXPECT_EQ(registry.list().at("matmul"), "(tensor, tensor) -> tensor");
}

}  // namespace
}  // namespace lockstep::inline v0::rpc
