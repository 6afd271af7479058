// Tests the command `lockstep` with real processes, and beside torchrun where a Python with torch
// is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <set>

#include "lockstep/cli/cli_test_support.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/internal/mpi_test_support.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::inline v0::cli {
namespace cli_mp_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using namespace cli_test_support;  // NOLINT: a test's own helpers

std::map<std::string, std::string> variables_of(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : lines_of(text)) {
    if (const auto equals = line.find('='); equals != std::string::npos) {
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  return variables;
}

TEST(LockstepCommand, HelpAndVersion) {
  const Ended help = lockstep({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("  run "), HasSubstr("  train ")));
  EXPECT_THAT(lockstep({"--version"}).out, testing::StartsWith("lockstep 0."));
  EXPECT_EQ(lockstep({"run", "--help"}).code, 0);
  const Ended nothing = lockstep({});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("Usage:"));
}

TEST(LockstepCommand, WrongCommandLinesAreOneLineAndExitCodeTwo) {
  const std::map<std::string, Words> cases = {
      {"lockstep: no command 'trian' (did you mean train?)", {"trian"}},
      {"lockstep run: no program to run", {"run"}},
      {"lockstep run: program 'no-such-program' not found on PATH", {"run", "no-such-program"}},
      {"lockstep run: --nproc-per-node=0", {"run", "--nproc-per-node", "0", "/bin/true"}},
      {"lockstep run: unknown flag --nproc-per-nod3 (did you mean --nproc-per-node?)",
       {"run", "--nproc-per-nod3=1", "x"}},
      {"lockstep run: --nnodes=2 needs, on every host, --node-rank",
       {"run", "--nnodes=2", "/bin/true"}},
      {"lockstep run: redirects or tee name local rank 5", {"run", "-t", "5:3", "/bin/true"}},
      {"lockstep run: --role: role 'ps=none': expected a number of ranks",
       {"run", "--role", "ps=none", "/bin/true"}},
      {"lockstep run: max-restarts starts all ranks anew, restarts of role 'ps' one alone",
       {"run", "--role", "ps=1,restarts=2", "--max-restarts", "1", "/bin/true"}},
  };
  for (const auto& [expected, words] : cases) {
    const Ended ended = lockstep(words);
    EXPECT_EQ(ended.code, 2) << expected;
    EXPECT_THAT(ended.err, testing::StartsWith(expected));
    EXPECT_EQ(lines_of(ended.err).size(), 1u) << ended.err;
  }
}

TEST(LockstepRun, StartsRanksAndPassesTheirExitCode) {
  EXPECT_THAT(
      lines_of(
          lockstep({"run", "-np", "2", "/bin/sh", "-c", "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE"}).out),
      UnorderedElementsAre("0/2", "1/2"));
  EXPECT_EQ(lockstep({"run", "/bin/sh", "-c", "exit 3"}).code, 1);
  EXPECT_EQ(lockstep({"run", "/bin/sh", "-c", "exit 2"}).code, 2);
}

// Starts it as cron, a daemon or `>&-` do; it runs as if the streams were /dev/null.
TEST(LockstepCommand, ClosedStandardStreamsChangeNothingElse) {
  const auto with_closed = [](const std::string& closed, Words words) {
    words.insert(words.begin(),
                 {"/bin/sh", "-c", "exec \"$0\" \"$@\" " + closed, lockstep_program()});
    return run(words);
  };
  struct Case {
    std::string closed;
    bool out = true, err = true;  // the stream is open
  };
  for (const auto& [closed, out, err] :
       {Case{"<&-"}, Case{"</dev/null >&-", false, true}, Case{"</dev/null 2>&-", true, false},
        Case{"<&- >&- 2>&-", false, false}}) {
    const TestDirectory folder;
    const std::string script =
        "cat; echo out; echo err >&2; echo done > '" + folder.path().string() + "'/$RANK; exit $1";
    const Ended ended =
        with_closed(closed, {"run", "-np", "2", "/bin/sh", "-c", script, "sh", "0"});
    EXPECT_EQ(ended.code, 0) << closed << ": " << ended.err;
    EXPECT_EQ(folder.read("0") + folder.read("1"), "done\ndone\n") << closed;
    EXPECT_EQ(ended.out, out ? "out\nout\n" : "") << closed;
    EXPECT_EQ(ended.err, err ? "err\nerr\n" : "") << closed;
    EXPECT_EQ(with_closed(closed, {"run", "-np", "2", "/bin/sh", "-c", script, "sh", "3"}).code, 1)
        << closed;
    EXPECT_THAT(with_closed(closed, {"doctor"}).code, testing::AnyOf(0, 1)) << closed;
  }
}

TEST(LockstepRun, AgentsThatDoNotMeetAreNoMistake) {
  ::setenv("LOCKSTEP_SECRET", "of this test", 1);
  const Ended ended =
      lockstep({"run", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1",
                "--master-port", "9", "--rdzv-conf", "join_timeout=1", "/bin/true"});
  ::unsetenv("LOCKSTEP_SECRET");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("no first agent to join within 1 s"));
}

TEST(LockstepRun, ARoleOfItsOwnIsStartedAgainAlone) {
  const Ended ended =
      lockstep({"run", "--role", "ps=1,restarts=1", "--role", "trainer=2", "/bin/sh", "-c",
                "[ $ROLE_NAME$LOCKSTEP_RESTART_COUNT = ps0 ] && kill -9 $$; echo "
                "$ROLE_NAME $ROLE_RANK"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("ps 0", "trainer 0", "trainer 1"));
  EXPECT_THAT(ended.err, HasSubstr("rank 0 (ps 0) killed by SIGKILL"));
}

TEST(LockstepRun, TheOthersGoOnWithoutARankThatDiesWhereTheyMay) {
  const std::vector<std::string> run{"run", "--on-failure", "shrink", "-np", "3", "/bin/sh", "-c"};
  const auto with = [&run](const std::string& script) {
    std::vector<std::string> words = run;
    words.push_back(script);
    return lockstep(words);
  };
  const Ended ended = with("[ $RANK = 1 ] && kill -9 $$; sleep 0.5; echo rank $RANK");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("rank 0", "rank 2"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1 killed by SIGKILL"));
  EXPECT_THAT(ended.err, testing::EndsWith("; the others go on without it\n"));
  EXPECT_EQ(with("kill -9 $$").code, 1) << "nobody is left";
  EXPECT_EQ(with("[ $RANK = 1 ] && exit 2; sleep 30").code, 2);
}

TEST(LockstepRun, NoUseEnvPassesTheLocalRank) {
  EXPECT_THAT(lines_of(lockstep({"run", "-np", "2", "--no-use-env", "/bin/echo", "a"}).out),
              UnorderedElementsAre("--local-rank=0 a", "--local-rank=1 a"));
}

TEST(LockstepRun, TheLaunchLineOfTutorialThree) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  const TestDirectory folder;
  const std::string script =
      folder.write("multi-gpu-distributed-cls.py",
                   "import os, sys\nprint(os.environ['LOCAL_RANK'], *sys.argv[1:])\n");
  const Ended ended = lockstep({"run", "--nnode=1", "--node_rank=0", "--nproc_per_node=2",
                                "--use_env", script, "--local_world_size=2"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("0 --local_world_size=2", "1 --local_world_size=2"));
}

// Every variable that torchrun sets is set, to the same value except for ports and identifiers.
TEST(BesideTorchrun, TheSameVariables) {
  const std::string python = torch_python(LOCKSTEP_SOURCE_DIR);
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const Words print_one = {"--nproc-per-node=2", "--no-python", "/bin/sh", "-c",
                           "[ $RANK = 0 ] || env"};
  Words torchrun = {python, "-m", "torch.distributed.run"}, ours = {"run"};
  torchrun.insert(torchrun.end(), print_one.begin(), print_one.end());
  ours.insert(ours.end(), print_one.begin(), print_one.end());
  const auto theirs = variables_of(run(torchrun).out);
  const auto mine = variables_of(lockstep(ours).out);
  ASSERT_EQ(theirs.count("TORCHELASTIC_RUN_ID"), 1u) << "torchrun did not run";
  const std::set<std::string> may_differ = {
      "MASTER_PORT",
      "TORCHELASTIC_RUN_ID",
      "TORCHELASTIC_ERROR_FILE",
      "MASTER_ADDR",                   // localhost there, numeric here
      "OMP_NUM_THREADS",               // processors / ranks here
      "TORCHELASTIC_USE_AGENT_STORE",  // our agent's store is not torch's
      "_",
      "OLDPWD",
      "SHLVL"};  // the shell's
  for (const auto& [name, value] : theirs) {
    const auto it = mine.find(name);
    if (it == mine.end()) {
      ADD_FAILURE() << name << " is not set";
    } else if (!may_differ.contains(name)) {
      EXPECT_EQ(it->second, value) << name;
    }
  }
  EXPECT_EQ(mine.at("NODE_RANK"), mine.at("GROUP_RANK"));
  EXPECT_EQ(mine.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
}

TEST(BesideTorchrun, AnOrdinaryPyTorchScriptRuns) {
  const std::string python = torch_python(LOCKSTEP_SOURCE_DIR);
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const TestDirectory folder;
  const std::string script = folder.write("script.py",
                                          "import torch, torch.distributed as dist\n"
                                          "dist.init_process_group('gloo')\n"
                                          "t = torch.ones(3) * (dist.get_rank() + 1)\n"
                                          "dist.all_reduce(t)\n"
                                          "print(dist.get_rank(), t.tolist())\n"
                                          "dist.destroy_process_group()\n");
  ::setenv("PYTHON_EXEC", python.c_str(), 1);
  const Ended ended = lockstep({"run", "--nproc-per-node=2", script});
  ::unsetenv("PYTHON_EXEC");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("0 [3.0, 3.0, 3.0]", "1 [3.0, 3.0, 3.0]"));
}

TEST(BesideTorchrun, ARecordedErrorIsQuoted) {
  const std::string python = torch_python(LOCKSTEP_SOURCE_DIR);
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const TestDirectory folder;
  const std::string script =
      folder.write("script.py",
                   "import os\n"
                   "from torch.distributed.elastic.multiprocessing.errors import record\n"
                   "@record\n"
                   "def main():\n"
                   "  if os.environ['RANK'] == '1': raise ValueError('the data is bad')\n"
                   "main()\n");
  ::setenv("PYTHON_EXEC", python.c_str(), 1);
  const Ended ended = lockstep({"run", "--nproc-per-node=2", script});
  ::unsetenv("PYTHON_EXEC");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1 of 2 failed first: exited with code 1"),
                               HasSubstr("  error: ValueError: the data is bad\n")));
}

// Runs `lockstep` with /dev/null as its stdin, as under cron.
Ended lockstep_without_input(const Words& words) {
  Words all = {"/bin/sh", "-c", "exec \"$@\" </dev/null", "sh", lockstep_program()};
  all.insert(all.end(), words.begin(), words.end());
  return run(all);
}

class LockstepRunMpi : public ::testing::TestWithParam<launch::MpiFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, LockstepRunMpi, ::testing::ValuesIn(launch::kMpiFamilies),
                         [](const auto& info) { return launch::name_of(info.param); });

TEST_P(LockstepRunMpi, MpirunStartsTheRanks) {
  if (const std::string why = launch::lacks_mpirun(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const auto mpirun = launch::find_mpirun_of(GetParam());
  ::setenv("LOCKSTEP_MPIRUN", mpirun->name.c_str(), 1);
  const auto lockstep = lockstep_without_input;
  const std::string say =
      "echo $OMPI_COMM_WORLD_RANK$PMI_RANK of $OMPI_COMM_WORLD_SIZE$PMI_SIZE over "
      "$LOCKSTEP_BACKEND";
  const Ended ended = lockstep({"run", "--backend", "mpi", "-np", "3", "/bin/sh", "-c", say});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("0 of 3 over mpi", "1 of 3 over mpi", "2 of 3 over mpi"));
  const Ended tagged =
      lockstep({"run", "--backend", "mpi", "-np", "1", "--prefix", "/bin/echo", "hello"});
  EXPECT_THAT(tagged.out, AllOf(HasSubstr("hello"), HasSubstr("0]")));
  EXPECT_EQ(lockstep({"run", "--backend", "mpi", "-np", "2", "/bin/sh", "-c", "exit 7"}).code, 1);
  EXPECT_EQ(lockstep({"run", "--backend", "mpi", "-np", "2", "/bin/sh", "-c", "exit 2"}).code, 2);
  ::unsetenv("LOCKSTEP_MPIRUN");
}

// MPICH's mpirun is killed by SIGPIPE where it passes on the end of its stdin when the ranks have
// ended. The mpirun here only shows what it would read, and starts one rank.
TEST(LockstepRunMpiInput, MpirunHasNoEndOfStdinToPassOn) {
  const TestDirectory folder;
  const std::string mpirun =
      folder.write("mpirun",
                   "#!/bin/sh\n"
                   "[ \"$1\" = --version ] && exec echo 'HYDRA build details:'\n"
                   "echo \"mpirun reads $(readlink /proc/$$/fd/0)\"\n"
                   "shift 2\n"
                   "exec \"$@\"\n");
  ::chmod(mpirun.c_str(), 0755);
  ::setenv("LOCKSTEP_MPIRUN", mpirun.c_str(), 1);
  const Words words = {"run", "--backend",
                       "mpi", "/bin/sh",
                       "-c",  "echo \"the rank reads $(readlink /proc/$$/fd/0)\"; exit 2"};
  const Ended ended = lockstep_without_input(words);
  ::unsetenv("LOCKSTEP_MPIRUN");
  EXPECT_EQ(ended.code, 2) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("mpirun reads anon_inode:[eventfd]\n"),
                               HasSubstr("the rank reads /dev/null\n")));
}

}  // namespace cli_mp_test
}  // namespace lockstep::inline v0::cli
