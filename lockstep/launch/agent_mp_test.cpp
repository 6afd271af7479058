// The agent with real processes: starting, failing, signals, restarts.
#include "lockstep/launch/agent.h"
#include "lockstep/launch/launch_options.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace agent_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

TEST(Agent, EveryRankRunsAndTheAgentExitsWithZero) {
  const Ended ended = run_shell({"nproc", "3"}, "echo rank $RANK of $WORLD_SIZE");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("rank 0 of 3", "rank 1 of 3", "rank 2 of 3"));
  EXPECT_EQ(ended.err, "");
}

TEST(Agent, RanksMeetThroughItsStore) {
  const Ended ended = run({"nproc", "4"}, {program(), "rank", "meet"});
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST(Agent, TwoRanksStartAndEndInUnderAFifthOfASecond) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const Ended ended = run({"nproc", "2"}, {program(), "rank", "meet"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    seconds.push_back(ended.seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "[ measured ] 2 ranks of a C++ program, start, meeting and end: best %.4f s, median %.4f s\n",
      seconds[0], seconds[2]);
  EXPECT_LT(seconds[0], 1.0) << "generous: the machine may be busy";
}

TEST(Agent, AKilledRankIsNamedWithItsSignalAndItsLastCollective) {
  const Ended ended = run({"nproc", "2", "grace", "10000"}, {program(), "rank", "die"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_LT(ended.seconds, 5);
  EXPECT_THAT(
      ended.err,
      AllOf(HasSubstr("[lockstep] rank 1 of 2 failed first: killed by SIGKILL"),
            HasSubstr(
                "last collective: #7 all_reduce sum float32 x 10 at train.cpp:3 (still inside)"),
            EndsWith("last lines of its stderr:\n    rank 1 goes\n")));
  for (const int pid : pids_in(ended.out)) EXPECT_FALSE(alive(pid));
}

TEST(Agent, AStoppedRankIsNamedAndNotThoseThatGaveUpWaiting) {
  const Ended ended = run({"nproc", "3", "grace", "200"}, {program(), "rank", "stop"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("[lockstep] rank 1 of 3 is stopped (SIGSTOP), pid "),
                    HasSubstr("gave up waiting\n  last collective: #7 all_reduce sum float32 x 10"),
                    HasSubstr(" waited in vain\n"), Not(HasSubstr("failed first"))));
}

TEST(Agent, ARankThatIsStoppedInInitIsNamedWithWhereItIs) {
  const Ended ended = run({"nproc", "3", "grace", "200"}, {program(), "rank", "stop-in-init"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(
      ended.err,
      AllOf(HasSubstr("[lockstep] rank 1 of 3 is stopped (SIGSTOP), pid "),
            HasSubstr("  last collective: none yet; it is in init(): connecting to the others\n"),
            Not(HasSubstr("failed first"))));
}

// Only errors of a communicator say that the rank merely waited.
TEST(Agent, AStoppedRankIsToldBesideAnyFailure) {
  const Ended ended = run({"nproc", "2", "grace", "200"}, {program(), "rank", "stop-unnoticed"});
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 0 of 2 failed first: exited with code 1"),
                               HasSubstr("  besides, rank 1 is stopped (SIGSTOP), pid ")));
}

TEST(Agent, TheFirstFailureIsBlamedNotTheOnesThatItCauses) {
  const Ended ended =
      run_shell({"nproc", "3"},
                "if [ $RANK = 2 ]; then echo the cause >&2; exit 7; fi; trap 'exit 9' TERM; "
                "while :; do sleep 0.01; done");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 2 of 3 failed first: exited with code 7"),
                               HasSubstr("    the cause\n"), Not(HasSubstr("code 9"))));
}

TEST(Agent, ARanksExitCodeTwoPassesThroughAndItsLineIsShownOnce) {
  const Ended one =
      run_shell({"nproc", "2"}, "[ $RANK = 0 ] && sleep 30; echo bad option >&2; exit 2");
  EXPECT_EQ(one.code, 2);
  EXPECT_EQ(one.err, "bad option\n");
  EXPECT_LT(one.seconds, 5);
  const Ended all = run_shell({"nproc", "4"}, "echo bad option >&2; exit 2");
  EXPECT_EQ(all.code, 2);
  EXPECT_EQ(all.err, "bad option\n") << "all say the same";
}

TEST(Agent, TheSameLinesOfAllRanksAreAllShownWhenNothingIsWrong) {
  EXPECT_EQ(run_shell({"nproc", "3"}, "echo hello >&2").err, "hello\nhello\nhello\n");
}

TEST(Agent, AnErrorFileThatARankWroteIsQuoted) {
  const std::string script =
      R"(if [ $RANK = 1 ]; then echo '{"message": {"message": "ValueError: boom", "extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE; exit 1; fi; sleep 30)";
  EXPECT_THAT(run_shell({"nproc", "2"}, script).err, HasSubstr("  error: ValueError: boom\n"));
}

TEST(Agent, OfAFailureAndItsConsequenceTheFirstIsToldAndOnlyOnce) {
  const TestDirectory folder;
  const std::string noted = folder / "noted";
  const std::string script =
      "if [ $RANK = 0 ]; then "
      R"(echo '{"message": "the disk is full", "complete": true}' > $TORCHELASTIC_ERROR_FILE; )"
      "touch " +
      noted + "; sleep 30; fi; until [ -e " + noted +
      " ]; do sleep 0.01; done; "
      R"(echo '{"message": "rank 0 is gone", "consequence": true}' > $TORCHELASTIC_ERROR_FILE; )"
      "exit 1";
  const Ended ended = run_shell({"nproc", "2"}, script);
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.err, "the disk is full\n");
}

TEST(Agent, ARankThatIsKilledIsBlamedAlsoWhereItsPeersEndBefore) {
  const TestDirectory folder;
  const std::string there = folder / "there";
  const std::string script =
      "if [ $RANK = 0 ]; then trap '' TERM; touch " + there + "; sleep 0.5; kill -9 $$; fi; " +
      "until [ -e " + there +
      " ]; do sleep 0.01; done; "
      R"(echo '{"message": "rank 0 is gone", "consequence": true}' > $TORCHELASTIC_ERROR_FILE; )"
      "exit 1";
  const Ended ended = run_shell({"nproc", "2"}, script);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("rank 0 of 2 failed first: killed by SIGKILL"));
}

TEST(Agent, TheReportShowsTheLastTwentyLinesOfStderr) {
  const Ended ended = run_shell(
      {},
      "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i >&2; done; printf cut >&2; exit 3");
  const std::string report = ended.err.substr(ended.err.find("[lockstep]"));
  EXPECT_THAT(report, AllOf(HasSubstr("    line 100\n    cut\n"), HasSubstr("    line 81\n"),
                            Not(HasSubstr("line 80\n"))));
}

TEST(Agent, AProgramThatCannotBeStartedIsOneClearLine) {
  EXPECT_THAT(run({}, {"no-such-program-anywhere"}).err,
              HasSubstr("'no-such-program-anywhere' not found on PATH"));
  EXPECT_THAT(run({}, {"./absent"}).err, HasSubstr("'./absent': No such file or directory"));
  EXPECT_THAT(run({}, {"/tmp"}).err, HasSubstr("'/tmp' is a directory"));
}

// A rank that ignores SIGTERM is killed after the grace.

TEST(Agent, TermThenKillAfterTheGrace) {
  const Ended ended =
      run_shell({"nproc", "2", "grace", "300"},
                "if [ $RANK = 1 ]; then sleep 1; exit 1; fi; trap '' TERM; echo pid $$; "
                "while :; do sleep 0.05; done");
  EXPECT_EQ(ended.code, 1);
  EXPECT_GE(ended.seconds, 1.3);
  EXPECT_LT(ended.seconds, 5);
  for (const int pid : pids_in(ended.out)) EXPECT_FALSE(alive(pid));
}

TEST(Agent, NothingThatARankStartedIsLeft) {
  // First one rank fails while its children and the other rank's run; then a rank that ends well
  // leaves a child behind.
  for (const char* end : {"sleep 1; exit 1", "exit 0"}) {
    const Ended ended = run_shell(
        {"nproc", "2", "grace", "300"},
        "(trap '' TERM; while :; do sleep 0.05; done) & echo pid $!; sleep 60 & echo pid $!; " +
            std::string(end));
    const auto pids = pids_in(ended.out);
    EXPECT_EQ(pids.size(), 4u);
    for (const int pid : pids) EXPECT_FALSE(alive(pid)) << end;
    EXPECT_LT(ended.seconds, 5);
  }
}

// A child that moves to a session of its own, and so out of its rank's process group.
TEST(Agent, NothingIsLeftInSessionsOfItsOwn) {
  for (const char* end : {"exit 1", "exit 0"}) {
    const TestDirectory folder;
    const std::string file = (folder / "pids").string();
    // Also the processes that the child has started; the second one ignores SIGTERM.
    const Ended ended =
        run_shell({"nproc", "2", "grace", "300"},
                  "setsid sh -c 'sleep 60 & echo pid $! >> " + file + "; echo pid $$ >> " + file +
                      "; trap \"\" TERM; while :; do sleep 60; done' > " + file +
                      ".out 2>&1 & "
                      "until [ $(wc -l < " +
                      file + ") = 4 ]; do sleep 0.02; done 2> " + file + ".err; " + end);
    EXPECT_EQ(ended.code, std::string(end) == "exit 1" ? 1 : 0) << ended.err;
    const auto pids = pids_in(folder.read("pids"));
    EXPECT_EQ(pids.size(), 4u);
    for (const int pid : pids) EXPECT_TRUE(dies_soon(pid)) << end;
  }
}

TEST(Agent, TheRanksDieWithTheAgent) {
  Running agent({program(), "run", "nproc", "2", "--", program(), "rank", "wait"});
  agent.await_output("of rank 0");
  agent.await_output("of rank 1");
  const auto pids = pids_in(agent.out);
  ASSERT_EQ(pids.size(), 2u);
  ::kill(agent.process().pid(), SIGKILL);
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid));
}

TEST(Agent, WhatTheRanksStartedDiesWithTheAgentToo) {
  Running agent(
      {program(), "run", "nproc", "2", "--", "/bin/sh", "-c",
       "trap '' TERM; (trap '' TERM HUP; while :; do sleep 0.05; done) & echo pid $!; wait"});
  agent.await_output("pid ", 2);
  const auto pids = pids_in(agent.out);
  ASSERT_EQ(pids.size(), 2u);
  ::kill(agent.process().pid(), SIGKILL);
  for (const int pid : pids) EXPECT_TRUE(dies_soon(pid));
}

TEST(Agent, ItsOwnSignalsArePassedOnAndGiveTheExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Running agent({program(), "run", "nproc", "2", "--", "/bin/sh", "-c",
                   "trap 'echo got it; exit 0' INT TERM HUP; echo ready $RANK; while :; do sleep "
                   "0.01; done"});
    agent.await_output("ready 0");
    agent.await_output("ready 1");
    ::kill(agent.process().pid(), signal);
    EXPECT_EQ(agent.finish(), signal == SIGTERM ? 0 : 128 + signal);
    EXPECT_THAT(lines_of(agent.out), testing::Contains("got it").Times(2));
    EXPECT_THAT(agent.err, Not(HasSubstr("lockstep"))) << "no failure to report";
  }
}

// Behaves like a training that saves when it is asked to stop, which takes `seconds`.
std::string saves_on_term(const std::string& seconds, const std::string& then = "exit 0") {
  return "trap 'sleep " + seconds + "; echo saved $RANK; " + then +
         "' TERM; echo ready $RANK; while :; do sleep 0.01; done";
}

TEST(Agent, SigtermGivesTheRanksTimeToSaveAndTheJobEndsWellIfTheyDo) {
  struct Case {
    const char *what, *stop_grace, *seconds, *then;
    int code, saved;
  };
  for (const Case& c : {Case{"longer than after a failure", "60000", "1", "exit 0", 0, 2},
                        Case{"not in time", "200", "20", "exit 0", 143, 0},
                        Case{"one cannot", "60000", "0.1", "exit $RANK", 143, 2}}) {
    Running agent({program(), "run", "nproc", "2", "grace", "100", "stop-grace", c.stop_grace, "--",
                   "/bin/sh", "-c", saves_on_term(c.seconds, c.then)});
    agent.await_output("ready 0");
    agent.await_output("ready 1");
    ::kill(agent.process().pid(), SIGTERM);
    EXPECT_EQ(agent.finish(), c.code) << c.what;
    EXPECT_EQ(std::ranges::count_if(lines_of(agent.out),
                                    [](const auto& line) { return line.starts_with("saved"); }),
              c.saved)
        << c.what;
    EXPECT_THAT(agent.err, Not(HasSubstr("lockstep"))) << c.what;
  }
}

TEST(Agent, AfterAFailureTheGraceIsTheShortOne) {
  const Ended ended = run_shell({"nproc", "2", "grace", "100", "stop-grace", "60000"},
                                "if [ $RANK = 1 ]; then sleep 0.2; exit 1; fi; trap '' TERM; while "
                                ":; do sleep 0.05; done");
  EXPECT_EQ(ended.code, 1);
  EXPECT_LT(ended.seconds, 20);
}

TEST(Agent, ASecondInterruptKillsAtOnce) {
  Running agent({program(), "run", "nproc", "2", "grace", "60000", "--", "/bin/sh", "-c",
                 "trap '' INT TERM; echo pid $$; while :; do sleep 0.05; done"});
  agent.await_output("\n", 2);
  const auto start = std::chrono::steady_clock::now();
  ::kill(agent.process().pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // two pending signals count as one
  ::kill(agent.process().pid(), SIGINT);
  EXPECT_EQ(agent.finish(), 128 + SIGINT);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  for (const int pid : pids_in(agent.out)) EXPECT_FALSE(alive(pid));
}

TEST(Agent, UserSignalsArePassedOn) {
  Running agent({program(), "run", "nproc", "2", "--", "/bin/sh", "-c",
                 "trap 'echo usr1; exit 0' USR1; echo ready $RANK; while :; do sleep 0.01; done"});
  agent.await_output("ready 0");
  agent.await_output("ready 1");
  ::kill(agent.process().pid(), SIGUSR1);
  EXPECT_EQ(agent.finish(), 0);
  EXPECT_THAT(lines_of(agent.out), testing::Contains("usr1").Times(2));
}

TEST(Agent, RestartsTheWholeJobWithAFreshStore) {
  // The first two attempts fail after the meeting; the same key of the barrier serves all three, so
  // each attempt must have its own store.
  const std::string script =
      program() +
      " rank meet || exit 9; echo attempt $TORCHELASTIC_RESTART_COUNT of "
      "$TORCHELASTIC_MAX_RESTARTS "
      "rank $RANK; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || { [ $RANK = 0 ] && exit 3; sleep 30; }";
  const Ended ended = run_shell({"nproc", "2", "restarts", "5"}, script);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("attempt 2 of 5 rank 0"), HasSubstr("attempt 2 of 5 rank 1")));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("restart 1 of 5"), HasSubstr("restart 2 of 5"),
                               Not(HasSubstr("restart 3"))));
}

TEST(Agent, GivesUpAfterTheLastRestart) {
  const Ended ended = run_shell({"nproc", "2", "restarts", "2"}, "echo x; exit 5");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("failed first: exited with code 5"));
  const Ended usage = run_shell({"restarts", "2"}, "echo wrong >&2; exit 2");
  EXPECT_EQ(usage.code, 2) << "a wrong option is not tried again";
  EXPECT_EQ(usage.err, "wrong\n");
}

TEST(Agent, ThreadsAndProcessorsAreShared) {
  const Ended ended = run_shell({"nproc", "2"}, "echo $OMP_NUM_THREADS $(nproc)");
  const int cpus = usable_cpu_count(), allowed = static_cast<int>(allowed_cpus().size());
  if (allowed < 2) GTEST_SKIP() << "one processor";
  for (const std::string& line : lines_of(ended.out)) {
    EXPECT_THAT(line, testing::StartsWith(std::to_string(std::max(1, cpus / 2)) + " "));
  }
  const Ended many =
      run_shell({"nproc", std::to_string(allowed + 1)}, "taskset -pc $$ | sed 's/.*: //'");
  const Words masks = lines_of(many.out);
  EXPECT_EQ(std::set<std::string>(masks.begin(), masks.end()).size(), 1u)
      << "no pinning with too few processors";
}

TEST(Agent, TheMacroOfTheLocalRank) {
  const Ended ended = run({"nproc", "2", "macro"}, {"/bin/echo", "--local-rank=${local_rank}"});
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("--local-rank=0", "--local-rank=1"));
}

TEST(Agent, AMasterPortThatSomebodyUsesIsNamed) {
  const UniqueFd taken = listen_tcp({"127.0.0.1", 0});
  const std::string port = std::to_string(local_address(taken.get()).port);
  const Ended ended = run_shell({"port", port}, "true");
  EXPECT_EQ(ended.code, 65);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("master port " + port), HasSubstr("held by process")));
}

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(Agent, LeavesNothingInTheProcessThatCalledIt) {
  LaunchOptions options;
  options.command = {"/bin/true"};
  options.nproc = 2;
  EXPECT_EQ(launch(options).exit_code, 0);
  const size_t before = open_descriptors();
  struct sigaction former{};
  ::sigaction(SIGINT, nullptr, &former);
  EXPECT_EQ(launch(options).exit_code, 0);
  EXPECT_EQ(open_descriptors(), before);
  struct sigaction now{};
  ::sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, former.sa_handler);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST(Agent, WrongOptionsAreInvalidArgument) {
  LaunchOptions options;
  EXPECT_THROW(launch(options), InvalidArgument);
  options.command = {"/bin/true"};
  options.nproc = 0;
  EXPECT_THROW(launch(options), InvalidArgument);
  options.nproc = 1;
  options.tee = {{1, Redirect::kBoth}};
  EXPECT_THROW(launch(options), InvalidArgument);
}

}  // namespace agent_mp_test
}  // namespace lockstep::inline v0::launch
