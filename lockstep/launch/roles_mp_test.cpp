// Roles with real processes: a failed rank is restarted alone, and services end with the other
// ranks.
#include "lockstep/launch/roles.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace roles_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

// The agent's command line for a script that asks for its role.
Words agent_of(const Words& roles, const std::string& script, const Words& more = {}) {
  Words words = {program(), "run"};
  for (const std::string& role : roles) words.insert(words.end(), {"role", role});
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {"--", "/bin/sh", "-c", script});
  return words;
}

Ended run_roles(const Words& roles, const std::string& script, const Words& more = {}) {
  Words words = agent_of(roles, script, more);
  words.erase(words.begin());
  return run_words(words);
}

int count(const std::string& text, const std::string& word) {
  int times = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++times;
  return times;
}

// Shell code that waits until the file exists.
std::string until(const std::string& file) {
  return "until [ -e " + file + " ]; do sleep 0.01; done; ";
}

TEST(Roles, EachRankIsToldWhatItIs) {
  const Ended ended =
      run_roles({"ps=1", "trainer=2"},
                "echo $RANK/$WORLD_SIZE $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE $LOCKSTEP_ROLES "
                "$LOCKSTEP_RESTART_COUNT.");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("0/3 ps 0/1 ps=0-0,trainer=1-2 .",
                                                        "1/3 trainer 0/2 ps=0-0,trainer=1-2 .",
                                                        "2/3 trainer 1/2 ps=0-0,trainer=1-2 ."));
}

TEST(Roles, AKilledServerComesBackAndTheTrainersFinish) {
  const TestDirectory folder;
  const std::string end = folder / "end";
  Running agent(agent_of({"ps=1,restarts=2", "trainer=2"},
                         "echo $ROLE_NAME $ROLE_RANK $LOCKSTEP_RESTART_COUNT "
                         "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS pid $$; " +
                             until(end)));
  agent.await_output("pid ", 3);
  const std::string first = agent.out.substr(agent.out.find("ps 0 0 0 2"));
  ::kill(pids_in(first).front(), SIGKILL);
  agent.await_output("ps 0 1 1 2 pid ");
  for (const int pid : pids_in(agent.out))
    EXPECT_EQ(alive(pid), pid != pids_in(first).front()) << "the trainers are the same";
  folder.write("end", "");
  EXPECT_EQ(agent.finish(), 0) << agent.err;
  EXPECT_EQ(agent.err,
            "[lockstep] rank 0 (ps 0) killed by SIGKILL (by the kernel for lack of memory, "
            "unless a user sent it), pid " +
                std::to_string(pids_in(first).front()) + "; it is started again, 1 of 2\n");
}

// The C++ program's side: the store outlives the process that died.
TEST(Roles, ARestartedRankFindsTheOthersInTheStore) {
  const Ended ended =
      run_words({"run", "role", "ps=1,restarts=1", "role", "trainer=2", "--", program(), "role"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("trainer 0 was served by life 1 of rank 0",
                                   "trainer 1 was served by life 1 of rank 0"));
}

TEST(Roles, UsedUpRestartsEndTheJobAndAreNamed) {
  const Ended ended = run_roles({"trainer=1", "ps=2,restarts=2"},
                                "[ $RANK = 2 ] && { echo no luck >&2; exit 3; }; sleep 60");
  EXPECT_EQ(ended.code, 1);
  EXPECT_LT(ended.seconds, 20);
  EXPECT_THAT(
      ended.err,
      AllOf(HasSubstr("rank 2 (ps 1) exited with code 3, pid "),
            HasSubstr("it is started again, 1 of 2\n"), HasSubstr("it is started again, 2 of 2\n"),
            HasSubstr("[lockstep] rank 2 of 3 (ps 1, after 2 restarts) failed first: exited with "
                      "code 3, pid "),
            EndsWith("  last lines of its stderr:\n    no luck\n")));
  EXPECT_EQ(count(ended.err, "it is started again"), 2) << "of rank 2 alone";
}

TEST(Roles, ExitCodeTwoIsFinal) {
  const Ended ended = run_roles({"ps=1,restarts=5", "trainer=1"},
                                "[ $RANK = 0 ] && { echo bad option >&2; exit 2; }; sleep 60");
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "bad option\n");
}

TEST(Roles, AFailureOfARoleWithoutRestartsEndsTheJobAsEver) {
  const Ended ended =
      run_roles({"ps=1,restarts=5", "trainer=2"}, "[ $RANK = 2 ] && exit 4; sleep 60");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("rank 2 of 3 (trainer 1) failed first: exited with code 4"),
                    Not(HasSubstr("started again"))));
}

TEST(Roles, ServicesAreAskedToEndAfterTheOthers) {
  const TestDirectory folder;
  const std::string ready = folder / "ready";
  const Ended ended = run_roles({"ps=1,service", "trainer=2"},
                                "[ $ROLE_NAME = trainer ] && { " + until(ready) +
                                    "exit 0; }; trap 'echo bye; exit 9' TERM; " + "touch " + ready +
                                    "; while :; do sleep 0.01; done");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "bye\n");
  EXPECT_THAT(ended.err, Not(HasSubstr("lockstep"))) << "the shell may tell of its child's end";
}

TEST(Roles, AServiceThatDoesNotEndIsKilledAfterTheGrace) {
  const TestDirectory folder;
  const std::string ready = folder / "ready";
  const Ended ended = run_roles({"ps=1,service,restarts=3", "trainer=1"},
                                "[ $ROLE_NAME = trainer ] && { " + until(ready) +
                                    "exit 0; }; trap '' TERM; echo pid $$; " + "touch " + ready +
                                    "; while :; do sleep 0.01; done",
                                {"grace", "300"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_GE(ended.seconds, 0.3);
  EXPECT_LT(ended.seconds, 20);
  ASSERT_EQ(pids_in(ended.out).size(), 1u);
  EXPECT_FALSE(alive(pids_in(ended.out).front()));
  EXPECT_EQ(ended.err, "");
}

TEST(Roles, WhatADeadRankHasStartedIsGoneBeforeItComesBack) {
  const TestDirectory folder;
  const std::string end = folder / "end";
  Running agent(
      agent_of({"ps=1,restarts=1", "trainer=1"},
               "if [ $ROLE_NAME$LOCKSTEP_RESTART_COUNT = ps0 ]; then sleep 60 & echo pid $!; "
               "kill -9 $$; fi; echo $ROLE_NAME is there; " +
                   until(end)));
  agent.await_output("ps is there");
  const std::vector<int> pids = pids_in(agent.out);
  ASSERT_EQ(pids.size(), 1u);
  EXPECT_TRUE(dies_soon(pids.front()));
  folder.write("end", "");
  EXPECT_EQ(agent.finish(), 0) << agent.err;
}

// Takes the minimum of several looks, because at a rank's start the agent still holds the pipes
// that it starts it with.
TEST(Roles, RestartsLeaveNoDescriptorsAndNoProcessesBehind) {
  const Ended ended = run_roles(
      {"ps=1,restarts=5"},
      "for i in 1 2 3 4 5 6 7 8 9 10; do ls /proc/$PPID/fd | wc -l; sleep 0.02; done | sort -n | "
      "head -n 1; cat /proc/$PPID/task/*/children | wc -w; [ $LOCKSTEP_RESTART_COUNT = 5 ]");
  EXPECT_EQ(ended.code, 0) << ended.err;
  const Words lines = lines_of(ended.out);
  ASSERT_EQ(lines.size(), 12u) << "descriptors and children of each life";
  for (size_t i = 2; i < lines.size(); ++i) EXPECT_EQ(lines[i], lines[i % 2]) << i / 2;
}

TEST(Roles, EachLifeHasItsOwnLogFiles) {
  const TestDirectory folder;
  const Ended ended =
      run_roles({"ps=1,restarts=1", "trainer=1"},
                "echo life $LOCKSTEP_RESTART_COUNT; [ $RANK$LOCKSTEP_RESTART_COUNT != 00 ]",
                {"log-dir", folder / "logs", "tee", "3"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto job = *std::filesystem::directory_iterator(folder / "logs");
  const auto text = [&](const char* file) {
    std::ifstream stream(job.path() / file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  EXPECT_EQ(text("attempt_0/0/stdout.log"), "life 0\n");
  EXPECT_EQ(text("attempt_1/0/stdout.log"), "life 1\n");
  EXPECT_FALSE(std::filesystem::exists(job.path() / "attempt_1/1"));
}

TEST(Roles, AnInterruptEndsEverythingAlsoARestartedRank) {
  Started agent(
      agent_of({"ps=1,restarts=3", "trainer=1"},
               "[ $ROLE_NAME$LOCKSTEP_RESTART_COUNT = ps0 ] && exit 1; echo $ROLE_NAME pid "
               "$$; while :; do sleep 0.01; done"));
  agent.await("ps pid ");
  agent.await("trainer pid ");
  ::kill(agent.process().pid(), SIGINT);
  EXPECT_EQ(agent.finish(), 128 + SIGINT) << agent.said;
  for (const int pid : pids_in(agent.said)) EXPECT_FALSE(alive(pid));
  EXPECT_EQ(count(agent.said, "started again"), 1);
}

TEST(Roles, AnInterruptWhileARankWaitsForItsRestartEndsTheJob) {
  Started agent(agent_of({"ps=1,restarts=9"}, "exit 1"));
  agent.await("it is started again, 5 of 9");  // in 1.6 s
  ::kill(agent.process().pid(), SIGINT);
  EXPECT_EQ(agent.finish(), 128 + SIGINT) << agent.said;
  EXPECT_THAT(agent.said, Not(HasSubstr("6 of 9")));
}

TEST(Roles, WhenTheAgentIsKilledRestartedRanksAndTheirChildrenGoToo) {
  Running agent(
      agent_of({"ps=1,restarts=1"},
               "[ $LOCKSTEP_RESTART_COUNT = 0 ] && exit 1; sleep 60 & echo pid $!; echo pid "
               "$$; wait"));
  agent.await_output("pid ", 2);
  ::kill(agent.process().pid(), SIGKILL);
  for (const int pid : pids_in(agent.out)) EXPECT_TRUE(dies_soon(pid)) << pid;
}

TEST(Roles, OptionsThatContradictEachOtherAreRefused) {
  const auto error_of = [](const Words& words) {
    Words all = {"run"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--", "/bin/true"});
    return run_words(all).err;
  };
  EXPECT_THAT(error_of({"role", "ps=1", "nproc", "3"}), HasSubstr("but the roles have 1 (ps=0-0)"));
  EXPECT_THAT(error_of({"role", "ps=1,restarts=1", "restarts", "1"}),
              HasSubstr("max-restarts starts all ranks anew"));
}

}  // namespace roles_mp_test
}  // namespace lockstep::inline v0::launch
