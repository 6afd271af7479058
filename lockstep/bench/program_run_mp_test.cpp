#include "lockstep/bench/program_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::bench::program_run_mp_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

ProgramEnd sh(const TestDirectory& dir, const std::string& script, Deadline deadline,
              Terminal terminal = {}) {
  return run_program({.command = {"sh", "-c", script},
                      .env = launch::current_environment(),
                      .log = dir / "log.txt",
                      .terminal = terminal},
                     deadline);
}

TEST(ProgramRun, KeepsTheLastLinesAndSaysHowItEnded) {
  const TestDirectory dir;
  const Deadline deadline = Deadline::seconds(60);
  const ProgramEnd end = sh(dir, "seq 100; echo; printf 'no end of line' >&2; exit 7", deadline);
  EXPECT_EQ(end.status->exit_code, 7);
  EXPECT_EQ(end.last_lines.size(), 20u);
  EXPECT_THAT(end.last_lines, Contains("no end of line"));
  EXPECT_THAT(failure_text(end, deadline), HasSubstr("exit code 7: "));
  EXPECT_THAT(dir.read("log.txt"), HasSubstr("1\n2\n3\n"));
  EXPECT_EQ(failure_text(sh(dir, "kill -15 $$", deadline), deadline), "signal SIGTERM");
}

TEST(ProgramRun, EndsWhatPassesItsDeadline) {
  const TestDirectory dir;
  const Deadline deadline = Deadline::seconds(0.3);
  const ProgramEnd end = sh(dir, "echo begun; exec sleep 1000", deadline);
  EXPECT_FALSE(end.status);
  EXPECT_THAT(failure_text(end, deadline), HasSubstr("no end within 0.3 s"));
}

// The program itself sends the signals, when it is ready for what follows.
TEST(ProgramRun, ASignalEndsItInOrderAndASecondOneAtOnce) {
  const TestDirectory dir;
  const auto run = [&](const std::string& on_term) {
    launch::SignalPipe signals;
    return run_program(
        {.command = {"sh", "-c",
                     "trap '" + on_term + "' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"},
         .env = launch::current_environment(),
         .log = dir / "log.txt",
         .signals = &signals},
        Deadline::seconds(300));
  };
  EXPECT_EQ(run("echo in order; exit 3").stopped_by, SIGTERM);
  EXPECT_THAT(dir.read("log.txt"), HasSubstr("in order\n"));
  EXPECT_EQ(run("echo not yet; kill -TERM $PPID").stopped_by, SIGTERM);
  EXPECT_THAT(dir.read("log.txt"), HasSubstr("not yet\n"));
}

TEST(ProgramRun, DoesNotWaitForWhatTheProgramLeaves) {
  const TestDirectory dir;
  const ProgramEnd end = sh(dir, "sleep 1000 & exit 0", Deadline::seconds(60));
  EXPECT_TRUE(end.status && end.status->ok());
}

TEST(ProgramRun, ATerminalIsPassedOn) {
  const TestDirectory dir;
  testing::internal::CaptureStderr();
  const ProgramEnd end =
      sh(dir, "[ -t 2 ] && stty size <&2; printf '\\rhalf\\r\\033[Kdone\\n' >&2",
         Deadline::seconds(60), {.interactive = true, .unicode = true, .columns = 97});
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(end.status->ok());
  EXPECT_THAT(shown, HasSubstr("\rhalf\r\x1b[Kdone\n"));
  EXPECT_THAT(dir.read("log.txt"),
              AllOf(HasSubstr("24 97\n"), HasSubstr("\ndone\n"), Not(HasSubstr("half"))));
}

}  // namespace
}  // namespace lockstep::inline v0::bench::program_run_mp_test
