// How training is told to stop, which step all ranks stop after, and the note that is left.
#include "lockstep/train/stop_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/requeue_note.h"
#include "lockstep/train/stop_agreement.h"

namespace lockstep::inline v0::stop_signals_test {

using ::testing::HasSubstr;

void (*handler_of(int signal))(int) {
  struct sigaction action{};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

TEST(StopSignals, RemembersTheFirstAndRestoresWhatWasThere) {
  EXPECT_EQ(StopSignals::received(), 0);
  EXPECT_FALSE(StopSignals::note(SIGTERM)) << "nobody listens";
  {
    const StopSignals signals;
    EXPECT_EQ(StopSignals::received(), 0);
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    EXPECT_EQ(StopSignals::received(), SIGUSR1);
    {
      const StopSignals second;
      EXPECT_EQ(StopSignals::received(), SIGUSR1) << "signals are the process's";
    }
    ::raise(SIGTERM);  // the process still lives
  }
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
  EXPECT_EQ(handler_of(SIGUSR1), SIG_DFL);
  EXPECT_EQ(StopSignals::received(), 0);
  const StopSignals again;
  EXPECT_EQ(StopSignals::received(), 0) << "what came before does not count";
  EXPECT_TRUE(StopSignals::note(SIGTERM));
  EXPECT_EQ(StopSignals::received(), SIGTERM);
}

extern "C" void own_handler(int signal) {
  StopSignals::note(signal);
}

TEST(StopSignals, LeavesWhatTheProgramHandlesOrIgnores) {
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGUSR1, own_handler);
  {
    const StopSignals signals;
    ::raise(SIGTERM);
    EXPECT_EQ(StopSignals::received(), 0);
    ::raise(SIGUSR1);
    EXPECT_EQ(StopSignals::received(), SIGUSR1) << "its own handler has passed it on";
  }
  EXPECT_EQ(handler_of(SIGTERM), SIG_IGN);
  EXPECT_EQ(handler_of(SIGUSR1), own_handler);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGUSR1, SIG_DFL);
}

TEST(StopCadence, LooksEveryHalfSecondWhateverAStepTakes) {
  for (const double of_a_step : {1e-5, 1e-3, 0.03, 2.0}) {
    StopCadence cadence;
    int64_t steps = 0;
    for (int look = 0; look < 20; ++look) {
      const int64_t before = steps;
      do ++steps;
      while (!cadence.step());
      cadence.looked(static_cast<double>(steps - before) * of_a_step);
    }
    const double seconds = static_cast<double>(cadence.every()) * of_a_step;
    EXPECT_LE(seconds, std::max(of_a_step, StopCadence::kSeconds));
    EXPECT_GE(seconds, StopCadence::kSeconds * 0.9) << of_a_step;
  }
}

TEST(StopCadence, LooksMoreOftenAgainWhenStepsBecomeSlow) {
  StopCadence cadence;
  for (int look = 0; look < 4; ++look) {
    while (!cadence.step()) {
    }
    cadence.looked(0);
  }
  EXPECT_EQ(cadence.every(), 8 * 8 * 8 * 8) << "not at once";
  while (!cadence.step()) {
  }
  cadence.looked(4096);
  EXPECT_EQ(cadence.every(), 1);
}

// Steps of a tenth of a second, on a clock that counts them; rank 1's are slower.
TEST(StopAgreement, AllRanksStopAfterTheSameStepWhoeverWasTold) {
  for (int told = 0; told < 3; ++told) {
    testing::run_threads(3, [&](Communicator& comm) {
      int step = 0, collectives = 0;
      std::chrono::steady_clock::time_point now;
      StopAgreement agreement(
          comm,
          [&] {
            ++collectives;
            return comm.rank() == told && step >= 42 ? SIGUSR1 : 0;
          },
          [&] { return now; });
      int stopped_by = 0;
      while (stopped_by == 0 && step < 1000) {
        ++step;
        now += std::chrono::milliseconds(comm.rank() == 1 ? 125 : 100);
        stopped_by = agreement.after_step();
      }
      EXPECT_EQ(stopped_by, SIGUSR1);
      EXPECT_EQ(step, 45) << "looks after 1, 5, 9, ..., of 4 steps of the slowest rank each";
      EXPECT_EQ(collectives, 12);
    });
  }
}

TEST(StopAgreement, OfTwoSignalsTheGreaterAndAnewForOtherRanks) {
  testing::run_threads(2, [&](Communicator& comm) {
    const auto told = [&] { return comm.rank() == 0 ? SIGUSR1 : SIGTERM; };
    StopAgreement agreement(comm, told);
    EXPECT_EQ(agreement.after_step(), SIGTERM);
    agreement = StopAgreement(comm, told);
    EXPECT_EQ(agreement.after_step(), SIGTERM) << "the first step has a look";
  });
}

TEST(RequeueNote, ComesBackAndGoes) {
  const TestDirectory dir;
  EXPECT_EQ(read_requeue_note(dir.path()), std::nullopt);
  remove_requeue_note(dir.path());
  const RequeueNote note{.signal = SIGTERM, .step = 120, .checkpoint = dir / "checkpoints/last"};
  write_requeue_note(dir.path(), note);
  EXPECT_EQ(dir.read("requeue"), R"({"signal":"SIGTERM","step":120,"checkpoint":")" +
                                     (dir / "checkpoints/last").string() + "\"}\n");
  EXPECT_EQ(read_requeue_note(dir.path()), note);
  remove_requeue_note(dir.path());
  EXPECT_EQ(read_requeue_note(dir.path()), std::nullopt);
  dir.write("requeue", "{}");
  try {
    read_requeue_note(dir.path());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("requeue: is not a note of a stopped training"));
  }
}

}  // namespace lockstep::inline v0::stop_signals_test
