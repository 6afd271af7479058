// The cost of an agent in a process: threads, descriptors, and memory that is allocated for a call.
// It runs in processes, so that nothing of other tests is counted.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/autograd.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/gtest_ranks.h"

#if defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOCKSTEP_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef LOCKSTEP_COUNTS_ALLOCATIONS
#define LOCKSTEP_COUNTS_ALLOCATIONS 1
#endif

namespace lockstep::inline v0::rpc::costs_mp_test {

std::atomic<int64_t> allocations{0};

}  // namespace lockstep::inline v0::rpc::costs_mp_test

#if LOCKSTEP_COUNTS_ALLOCATIONS
void* operator new(size_t bytes) {
  lockstep::rpc::costs_mp_test::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
#endif

namespace lockstep::inline v0::rpc::costs_mp_test {
namespace {

using namespace std::chrono_literals;

struct Held {
  int64_t size = 0;
};

Registry functions() {
  Registry registry;
  registry.add("twice", [](int x) { return 2 * x; }, {.quick = true});
  registry.add("twice_by_a_worker", [](int x) { return 2 * x; });
  registry.add("text", [](const std::string& text) { return text; });
  registry.add("same", [](const at::Tensor& x) { return x; });
  registry.add("times", [](const at::Tensor& x) { return x * 2; });
  registry.add("make", [](int64_t x) { return std::make_shared<Held>(Held{x}); });
  registry.add("size", [](const Held& held) { return held.size; });
  registry.add("allocations", [] { return allocations.load(); });
  return registry;
}

// Both processes meet at the end by calling each other.
void on_two(const std::function<void(Agent&, int rank)>& body, int workers = 4) {
  testing::expect_lone_ranks(2, [&] {
    const int rank = static_cast<int>(env_int(process_env(), "RANK", 0, 1).value());
    const auto store =
        std::make_shared<TcpStore>(parse_host_port(process_env()("LOCKSTEP_STORE").value()),
                                   Secret::from_env(process_env()).value(), Deadline::seconds(60));
    const testing::Holdings before = testing::holdings();
    {
      Agent agent = init("p" + std::to_string(rank), store, functions(),
                         {.workers = workers, .world = {"p0", "p1"}});
      body(agent, rank);
      agent.shutdown();
    }
    const testing::Holdings after = testing::holdings_after(before);
    EXPECT_LE(after.fds, before.fds) << "descriptors";
    EXPECT_LE(after.threads, before.threads) << "threads";
  });
}

TEST(RpcCosts, FourThreadsBesidesThePoolAtMostAndNoDescriptorAfterShutdown) {
  constexpr int kWorkers = 3;
  on_two(
      [&](Agent& agent, int rank) {
        const std::string other = "p" + std::to_string(1 - rank);
        for (int i = 0; i < 200; ++i) EXPECT_EQ(agent.rpc_sync<int>(other, "twice", i), 2 * i);
        agent.rpc_sync<at::Tensor>(other, "same", at::ones({4 << 20}));
        const auto made = agent.remote<Held>(other, "make", 3);
        EXPECT_EQ(made.rpc_sync<int64_t>("size"), 3);
        {
          AutogradContext context(agent);
          const at::Tensor x = at::ones({8}).requires_grad_(true);
          context.backward({agent.rpc_sync<at::Tensor>(other, "times", x).sum()});
          EXPECT_TRUE(context.gradient_of(x).equal(at::ones({8}) * 2));
        }
        EXPECT_LE(testing::holdings().threads, kWorkers + 4);
      },
      kWorkers);
}

TEST(RpcCosts, TwoAllocationsACallAtMostBesidesItsArguments) {
  if (!LOCKSTEP_COUNTS_ALLOCATIONS)
    GTEST_SKIP() << "AddressSanitizer has operator new for itself: allocations are not counted";
  on_two([&](Agent& agent, int rank) {
    if (rank == 1) return;
    constexpr int kCalls = 20'000;
    // Returns the allocations per call: here, and there.
    const auto count = [&](const auto& call) {
      for (int i = 0; i < 2000; ++i) call();
      const auto there = agent.rpc_sync<int64_t>("p1", "allocations");
      const int64_t here = allocations;
      for (int i = 0; i < kCalls; ++i) call();
      const double own = static_cast<double>(allocations - here) / kCalls;
      const auto others =
          static_cast<double>(agent.rpc_sync<int64_t>("p1", "allocations") - there) / kCalls;
      std::printf("allocations a call: %.3f at the caller, %.3f at the callee\n", own, others);
      return std::pair(own, others);
    };
    // A little more, since cached objects are made anew now and then.
    constexpr double kLittle = 0.1;
    const auto [quick, quick_there] = count([&] { agent.rpc_sync<int>("p1", "twice", 3); });
    EXPECT_LE(quick + quick_there, 2 + kLittle);
    const auto [sync, sync_there] =
        count([&] { agent.rpc_sync<int>("p1", "twice_by_a_worker", 3); });
    EXPECT_LE(sync + sync_there, 2 + kLittle);
    const auto [async, async_there] =
        count([&] { agent.rpc_async<int>("p1", "twice_by_a_worker", 3).get(); });
    EXPECT_LE(async + async_there, 2 + kLittle);
    // A string of 100 bytes is made three times: the argument and the result at the callee, the
    // result at the caller.
    const std::string text(100, 'x');
    const auto [text_here, text_there] =
        count([&] { agent.rpc_sync<std::string>("p1", "text", text); });
    EXPECT_LE(text_here + text_there, 2 + 3 + kLittle);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::rpc::costs_mp_test
