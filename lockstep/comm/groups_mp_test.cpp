#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/comm/init.h"
#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::groups_mp_test {
namespace {

double sum_of_ones(Communicator& comm) {
  const at::Tensor t = at::ones({1000});
  comm.all_reduce(t);
  return t[999].item<double>();
}

class ProcessGroups : public ::testing::TestWithParam<const char*> {};

TEST_P(ProcessGroups, WorkAndGiveEverythingBack) {
  testing::expect_ranks(
      4,
      [](Communicator& comm) {
        Communicator all = comm.duplicate();
        EXPECT_EQ(all.capabilities().backend, comm.capabilities().backend);
        const testing::Holdings before = testing::holdings();
        {
          Communicator row = *comm.split(comm.rank() / 2);
          Communicator column = *comm.split(comm.rank() % 2, -comm.rank());
          std::optional<Communicator> three = comm.subgroup({3, 1, 0});
          EXPECT_EQ(row.rank(), comm.rank() % 2);
          EXPECT_EQ(column.rank(), 1 - comm.rank() / 2);
          EXPECT_EQ(column.local_rank(), column.rank());
          EXPECT_EQ(column.local_size(), 2);
          EXPECT_EQ(three.has_value(), comm.rank() != 2);
          // Interleaved, and not waited for in order.
          const at::Tensor a = at::ones({500}), b = at::ones({70'000}), c = at::ones({10});
          Work on_row = row.iall_reduce(a);
          Work on_column = column.iall_reduce(b);
          Work on_all = all.iall_reduce(c);
          on_all.wait();
          on_column.wait();
          on_row.wait();
          EXPECT_EQ(a[499].item<double>() + b[69'999].item<double>() + c[9].item<double>(), 8.0);
          if (three) {
            const testing::SuiteReport report = testing::run_operation_suite(
                *three, {.dtypes = {at::kFloat}, .sizes = {7}, .every_root = false});
            for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
          }
        }
        comm.barrier();
        const testing::Holdings after = testing::holdings_after(before);
        EXPECT_LE(after.fds, before.fds);
        EXPECT_LE(after.memfds, before.memfds);
        EXPECT_LE(after.threads, before.threads);
      },
      {.backend = GetParam()});
}

TEST_P(ProcessGroups, AgreeWhereRanksAreFarApart) {
  const bool slow = kSanitized || GetParam() == std::string("gloo");
  testing::expect_ranks(3,
                        [slow](Communicator& comm) {
                          const testing::SuiteReport report = testing::run_apart_suite(
                              comm, {.in_a_row = slow ? 10'000 : 100'000, .groups = true});
                          for (const std::string& failure : report.failures)
                            ADD_FAILURE() << failure;
                          EXPECT_GT(report.checked, 10'000);
                        },
                        {.backend = GetParam(), .timeout = std::chrono::seconds(60)});
}

TEST_P(ProcessGroups, MayBeWaitedInInOppositeOrders) {
  testing::expect_ranks(3, wait_in_opposite_orders,
                        {.backend = GetParam(), .timeout = std::chrono::seconds(20)});
}

TEST_P(ProcessGroups, DifferentOrdersAreNamed) {
  testing::expect_ranks(3, call_in_different_orders,
                        {.backend = GetParam(), .timeout = std::chrono::seconds(30)});
}

INSTANTIATE_TEST_SUITE_P(Backends, ProcessGroups, ::testing::Values("shm", "tcp", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Rank 0 serves the store, and its own communicator is destroyed before the others make a group.
TEST(ProcessGroup, TheStoreOfRankZeroLivesAsLongAsAGroupOfIt) {
  testing::expect_ranks(3, [](Communicator& comm) {
    const at::Tensor port = at::full({1}, 0, at::kInt);
    if (comm.rank() == 0) port.fill_(local_address(listen_tcp({"127.0.0.1", 0}).get()).port);
    comm.broadcast(port, 0);
    std::optional<Communicator> world =
        init({.init_method = "tcp://127.0.0.1:" + std::to_string(port.item<int>()),
              .rank = comm.rank(),
              .world_size = comm.size(),
              .secret = "only us"});
    Communicator group = world->duplicate();
    world.reset();
    Communicator next = group.duplicate();
    EXPECT_EQ(sum_of_ones(next), 3);
    comm.barrier();
  });
}

// ---- shrink, with processes that die ----

struct Survivors {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

void work_until_broken(Communicator& comm) {
  try {
    while (true) comm.all_reduce(at::ones({1000}));
  } catch (const PeerLost&) {
  }
}

void expect_all_operations(Communicator& comm) {
  const testing::SuiteReport report =
      testing::run_operation_suite(comm, {.dtypes = {at::kFloat}, .sizes = {0, 7}});
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_GT(report.checked, 10);
}

class ProcessShrink : public ::testing::TestWithParam<const char*> {};

TEST_P(ProcessShrink, TwoOfFourKilled) {
  testing::expect_lone_ranks(
      4,
      [] {
        Communicator comm = init({.backend = GetParam(), .timeout = std::chrono::seconds(30)});
        comm.barrier();
        if (comm.rank() == 0) ::kill(::getpid(), SIGKILL);
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          ::kill(::getpid(), SIGKILL);
        }
        work_until_broken(comm);
        const Survivors survivors;
        Communicator rest = comm.shrink(Deadline::seconds(30));
        EXPECT_LT(survivors.seconds(), 10);
        EXPECT_EQ(rest.size(), 2);
        EXPECT_EQ(rest.rank(), comm.rank() == 1 ? 0 : 1);
        expect_all_operations(rest);
      },
      {{0, SIGKILL}, {2, SIGKILL}});
}

INSTANTIATE_TEST_SUITE_P(Backends, ProcessShrink, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// The second rank dies in between: the survivors shrink again.
TEST(Shrink, OneAfterAnother) {
  testing::expect_lone_ranks(4,
                             [] {
                               Communicator comm =
                                   init({.backend = "shm", .timeout = std::chrono::seconds(30)});
                               comm.barrier();
                               if (comm.rank() == 3) ::kill(::getpid(), SIGKILL);
                               work_until_broken(comm);
                               Communicator three = comm.shrink(Deadline::seconds(30));
                               EXPECT_EQ(sum_of_ones(three), 3);
                               if (three.rank() == 0) ::kill(::getpid(), SIGKILL);
                               work_until_broken(three);
                               Communicator two = three.shrink(Deadline::seconds(30));
                               EXPECT_EQ(two.size(), 2);
                               EXPECT_EQ(two.rank(), comm.rank() - 1);
                               EXPECT_EQ(sum_of_ones(two), 2);
                             },
                             {{3, SIGKILL}, {0, SIGKILL}});
}

TEST(Shrink, AStoppedRankIsLeftOutAtTheDeadline) {
  testing::expect_lone_ranks(3,
                             [] {
                               Communicator comm =
                                   init({.backend = "shm", .timeout = std::chrono::seconds(1)});
                               comm.barrier();
                               if (comm.rank() == 1) ::raise(SIGSTOP);
                               try {
                                 comm.barrier();
                                 ADD_FAILURE() << "no Timeout";
                               } catch (const Timeout&) {
                               }
                               Communicator rest = comm.shrink(Deadline::seconds(6));
                               EXPECT_EQ(rest.size(), 2);
                               EXPECT_EQ(sum_of_ones(rest), 2);
                             },
                             {{1, SIGSTOP}});
}

TEST(Shrink, NobodyGone) {
  testing::expect_lone_ranks(3, [] {
    Communicator comm = init({.backend = "shm"});
    Communicator all = comm.shrink(Deadline::seconds(30));
    EXPECT_EQ(all.size(), 3);
    EXPECT_EQ(all.rank(), comm.rank());
    EXPECT_EQ(sum_of_ones(all), 3);
  });
}

TEST(Shrink, OfAGroupInWhichOneDied) {
  testing::expect_lone_ranks(4,
                             [] {
                               Communicator comm =
                                   init({.backend = "shm", .timeout = std::chrono::seconds(30)});
                               std::optional<Communicator> three = comm.subgroup({3, 2, 1});
                               if (!three) return;
                               three->barrier();
                               if (comm.rank() == 2) ::kill(::getpid(), SIGKILL);
                               work_until_broken(*three);
                               Communicator two = three->shrink(Deadline::seconds(30));
                               EXPECT_EQ(two.rank(), comm.rank() == 3 ? 0 : 1);
                               EXPECT_EQ(sum_of_ones(two), 2);
                             },
                             {{2, SIGKILL}});
}

// Rank 2 dies. Rank 1 waits for it, and rank 0 for rank 1 in a group of living ranks, to whose
// members rank 1 tells nothing but that it leaves.
TEST(Shrink, ARankThatWaitsInAGroupOfOthersLearnsThatTheyLeft) {
  testing::expect_lone_ranks(
      3,
      [] {
        Communicator comm = init({.backend = "shm", .timeout = std::chrono::seconds(30)});
        std::optional<Communicator> alive = comm.subgroup({0, 1}), dead = comm.subgroup({1, 2});
        if (comm.rank() == 2) ::kill(::getpid(), SIGKILL);
        const Survivors survivors;
        work_until_broken(comm.rank() == 0 ? *alive : *dead);
        Communicator rest = comm.shrink(Deadline::seconds(20));
        EXPECT_LT(survivors.seconds(), 15) << "half of the time-out";
        EXPECT_EQ(sum_of_ones(rest), 2);
        EXPECT_THROW(alive->barrier(), PeerLost);
      },
      {{2, SIGKILL}});
}

TEST(Shrink, WithoutTheStoreItSaysSo) {
  testing::expect_lone_ranks(
      3,
      [] {
        Communicator meeting = init({.backend = "shm", .timeout = std::chrono::seconds(30)});
        const at::Tensor port = at::full({1}, 0, at::kInt);
        if (meeting.rank() == 0) port.fill_(local_address(listen_tcp({"127.0.0.1", 0}).get()).port);
        meeting.broadcast(port, 0);
        Communicator comm =
            init({.backend = "shm",
                  .init_method = "tcp://127.0.0.1:" + std::to_string(port.item<int>()),
                  .rank = meeting.rank(),
                  .world_size = meeting.size(),
                  .timeout = std::chrono::seconds(30),
                  .secret = "only us"});
        comm.barrier();
        if (comm.rank() == 0) ::kill(::getpid(), SIGKILL);
        work_until_broken(comm);
        std::string text = "no StoreError";
        try {
          comm.shrink(Deadline::seconds(10));
        } catch (const StoreError& error) {
          text = error.what();
        }
        EXPECT_NE(text.find("cannot agree without the job's store"), std::string::npos) << text;
        EXPECT_EQ(text.find('\n'), std::string::npos);
      },
      {{0, SIGKILL}});
}

}  // namespace
}  // namespace lockstep::inline v0::groups_mp_test
