// Ranks that are killed, restarted, and reunited.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/job_store.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::reform_mp_test {
namespace {

using std::chrono::seconds;

bool is_first_life() {
  return process_env()("LOCKSTEP_RESTART_COUNT").value_or("0") == "0";
}

void die() {
  ::kill(::getpid(), SIGKILL);
}

double sum_of_ones(Communicator& comm) {
  const at::Tensor t = at::ones({50'000});
  comm.all_reduce(t);
  return t[49'999].item<double>();
}

class Reform : public ::testing::TestWithParam<const char*> {};

TEST_P(Reform, SurvivorsKeepTheirProcessAndMeetTheNewRank) {
  testing::expect_ranks(
      3,
      [](Communicator& first) {
        Communicator comm = first;
        const int pid = ::getpid();
        EXPECT_EQ(comm.size(), 3);
        int failures = 0;
        for (int step = is_first_life() ? 0 : -1; step < 6;) {
          try {
            if (step < 0) {  // the other ranks' step is unknown
              const at::Tensor at_step = at::ones({1}, at::kLong).fill_(step);
              comm.all_reduce(at_step, ReduceOp::kMax);
              step = static_cast<int>(at_step.item<int64_t>());
            }
            if (step == 3 && comm.rank() == 1 && is_first_life()) die();
            EXPECT_EQ(sum_of_ones(comm), 3.0);
            ++step;
          } catch (const PeerLost&) {
            ++failures;
            comm = comm.reform(Deadline::after(seconds(20)));
            const at::Tensor at_step = at::ones({1}, at::kLong).fill_(step);
            comm.all_reduce(at_step, ReduceOp::kMax);
            step = static_cast<int>(at_step.item<int64_t>());
          }
        }
        EXPECT_EQ(::getpid(), pid);
        EXPECT_EQ(failures, comm.rank() == 1 ? 0 : 1);
        const at::Tensor generations = at::ones({1}, at::kLong).fill_(comm.generation());
        comm.all_reduce(generations);
        EXPECT_EQ(generations.item<int64_t>(), 3 * comm.generation());
        EXPECT_GE(comm.generation(), 2) << "more where connecting took too long once";
        // Groups of the new generation, made by old and new processes alike.
        Communicator twin = comm.duplicate();
        EXPECT_EQ(sum_of_ones(twin), 3.0);
        EXPECT_THROW(twin.reform(Deadline::after(seconds(1))), InvalidArgument);
      },
      {.backend = GetParam(), .replacements = 1});
}

// Ranks die one after another, including those that have just arrived, and while the others meet.
TEST_P(Reform, RanksThatDieInEveryPhaseAreReplaced) {
  testing::expect_ranks(3,
                        [](Communicator& first) {
                          Communicator comm = first;
                          const int life =
                              std::stoi(process_env()("LOCKSTEP_RESTART_COUNT").value_or("0"));
                          // After it has met the others.
                          if (comm.rank() == 2 && life == 0) die();
                          if (comm.rank() == 2 && life == 1) die();
                          if (comm.rank() == 0 && life == 0 && comm.generation() == 1) {
                            try {
                              sum_of_ones(comm);
                            } catch (const PeerLost&) {
                            }
                            die();  // before it meets them
                          }
                          while (true) {
                            try {
                              EXPECT_EQ(sum_of_ones(comm), 3.0);
                              comm.barrier();
                              break;
                            } catch (const PeerLost&) {
                              comm = comm.reform(Deadline::after(seconds(30)));
                            }
                          }
                          EXPECT_GE(comm.generation(), 3);
                        },
                        {.backend = GetParam(), .replacements = 5});
}

// Rank 2 dies. Rank 1 waits for it, and rank 0 for rank 1 in a group of living ranks, to whose
// members rank 1 tells nothing but that it leaves.
TEST_P(Reform, ARankThatWaitsInAGroupOfOthersLearnsThatTheyLeft) {
  for (const bool kept : {false, true}) {
    testing::expect_ranks(
        3,
        [kept](Communicator& first) {
          using Clock = std::chrono::steady_clock;
          Communicator comm = first;
          std::optional<Communicator> alive, dead;
          bool failed = !is_first_life();
          Clock::time_point begin = Clock::now();
          if (is_first_life()) {
            alive = comm.subgroup({0, 1});
            dead = comm.subgroup({1, 2});
            if (comm.rank() == 2) die();
            begin = Clock::now();
            try {
              sum_of_ones(comm.rank() == 0 ? *alive : *dead);
            } catch (const PeerLost&) {
              failed = true;
            }
            if (!kept) alive.reset(), dead.reset();
            comm = comm.reform(Deadline::after(seconds(20)));
          }
          EXPECT_TRUE(failed);
          EXPECT_LT(Clock::now() - begin, seconds(15)) << "half of the time-out";
          EXPECT_EQ(sum_of_ones(comm), 3.0);
        },
        {.backend = GetParam(), .replacements = 1}, kept ? "kept" : "dropped");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Reform, ::testing::Values("shm", "tcp", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Without a replacement, under a launcher that does not end the other ranks.
TEST(ReformAlone, TheOthersShrinkWhereTheLauncherLetsThem) {
  testing::expect_ranks(3,
                        [](Communicator& comm) {
                          const int pid = ::getpid(), rank = comm.rank();
                          EXPECT_EQ(sum_of_ones(comm), 3.0);
                          if (rank == 1) die();
                          EXPECT_THROW(sum_of_ones(comm), PeerLost);
                          Communicator smaller = comm.shrink(Deadline::after(seconds(30)));
                          EXPECT_EQ(smaller.size(), 2);
                          EXPECT_EQ(smaller.rank(), rank == 0 ? 0 : 1);
                          EXPECT_EQ(sum_of_ones(smaller), 2.0);
                          EXPECT_EQ(::getpid(), pid);
                        },
                        {.shrinks = true});
}

TEST(ReformAlone, IsRefusedWhereNobodyIsStartedAnew) {
  testing::expect_ranks(2, [](Communicator& comm) {
    EXPECT_EQ(comm.generation(), 0);
    EXPECT_THROW(comm.reform(Deadline::after(seconds(1))), InvalidArgument);
    EXPECT_EQ(sum_of_ones(comm), 2.0) << "nothing was broken";
  });
}

}  // namespace
}  // namespace lockstep::inline v0::reform_mp_test
