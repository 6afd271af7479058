// A rank that cannot make its engine: the others learn of it, and of the reason, long before their
// time-out.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/comm/engines/tcp/tcp_backend.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::making_mp_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr auto kSoon = std::chrono::seconds(20);  // on a busy machine

class WithoutDescriptors : public ::testing::TestWithParam<const char*> {};

// Descriptors run out at every place where one is needed. No rank then has a group, and all
// continue without it.
TEST_P(WithoutDescriptors, AGroupIsMadeByNobodyAndAllSayWhy) {
  if (std::string_view(GetParam()) == "gloo")
    GTEST_SKIP() << "gloo's own listener ends the process where it has no descriptor";
  testing::expect_ranks(
      3,
      [](Communicator& comm) {
        int failures = 0;
        for (const int victim : {0, 1}) {
          for (int spare = 0; spare < 12; ++spare) {
            const auto start = std::chrono::steady_clock::now();
            std::string text;
            std::optional<Communicator> group;
            {
              std::optional<FewDescriptors> few;
              if (comm.rank() == victim) few.emplace(spare);
              try {
                group = comm.duplicate();
              } catch (const Error& error) {
                text = error.what();
              }
            }
            if (group) group->barrier();
            const std::string where = " with " + std::to_string(spare) + " left on rank " +
                                      std::to_string(victim) + ": " + text;
            const at::Tensor failed = at::ones({1}).mul_(text.empty() ? 0 : 1);
            comm.all_reduce(failed);
            const bool any = failed.item<float>() > 0;
            EXPECT_TRUE(!any || failed.item<float>() == 3) << where;
            EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon) << where;
            failures += any ? 1 : 0;
            if (text.empty()) continue;
            EXPECT_THAT(text, HasSubstr("Too many open files")) << where;
            if (comm.rank() != victim) {
              EXPECT_THAT(text, HasSubstr("rank " + std::to_string(victim) + " could not join"))
                  << where;
            }
          }
        }
        EXPECT_GE(failures, 4);
        EXPECT_EQ(comm.duplicate().size(), 3);
      },
      {.backend = GetParam(), .timeout = kTimeout, .deadline = std::chrono::seconds(300)});
}

TEST_P(WithoutDescriptors, InitEndsOnAllRanks) {
  testing::expect_lone_ranks(3, [] {
    const int rank = static_cast<int>(env_int(process_env(), "RANK").value());
    std::optional<FewDescriptors> few;
    const auto start = std::chrono::steady_clock::now();
    const std::string text = message_of<Error>([&] {
      init_by_steps({.backend = GetParam(), .timeout = kTimeout}, [&](const std::string& step) {
        if (rank == 1 && step.starts_with("connecting ") && !few) few.emplace(1);
      });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon) << text;
    EXPECT_THAT(text, HasSubstr("Too many open files"));
    if (rank != 1) {
      EXPECT_THAT(text, HasSubstr("rank 1 could not join the group"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, WithoutDescriptors, ::testing::Values("shm", "tcp", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Runs fn in a thread whose loopback interface is down. Returns false if such a thread is not
// possible.
bool where_loopback_is_down(const std::function<void()>& fn) {
  bool made = false;
  std::thread([&] {
    made = ::unshare(CLONE_NEWNET) == 0;
    if (made) fn();
  }).join();
  return made;
}

TEST(WithoutLoopback, InitAndTcpSaySoAtOnce) {
  std::string by_init, by_tcp;
  const auto start = std::chrono::steady_clock::now();
  const bool made = where_loopback_is_down([&] {
    by_init = message_of<Error>([] {
      init({.init_method = "tcp://127.0.0.1:29571",
            .rank = 1,
            .world_size = 2,
            .timeout = kTimeout,
            .secret = "only us"});
    });
    by_tcp = message_of<Error>([] {
      HashStore store;
      store.set("tcp/secret", "00");
      store.set("tcp/address/0", "127.0.0.1:29571");
      make_tcp_backend(store, {.rank = 1, .size = 2}, Deadline::after(kTimeout));
    });
  });
  if (!made) GTEST_SKIP() << "no network namespace can be made here (not root)";
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  for (const std::string& text : {by_init, by_tcp})
    EXPECT_THAT(text, AllOf(HasSubstr("127.0.0.1 cannot be reached (Network is unreachable)"),
                            HasSubstr("is the interface lo up?")));
}

}  // namespace
}  // namespace lockstep::inline v0::making_mp_test
