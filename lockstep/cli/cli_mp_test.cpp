// The command `lockstep` with real processes; and beside torchrun, where a Python with torch is
// found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::cli {
namespace cli_mp_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

std::string lockstep_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lockstep")
      .string();
}

struct Ended {
  int code = 0;
  std::string out, err;
};

Ended run(const Words& words) {
  Pipe out = make_pipe(), err = make_pipe();
  SubprocessOptions options;
  options.command = words;
  options.stdout_fd = out.write.get();
  options.stderr_fd = err.write.get();
  Subprocess process(options);
  out.write.reset();
  err.write.reset();
  Ended ended;
  while (out.read || err.read) {
    pollfd polls[] = {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
    ::poll(polls, 2, -1);
    const auto take = [](UniqueFd& fd, short events, std::string& text) {
      if (events == 0) return;
      char buffer[65536];
      const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
      if (n > 0) {
        text.append(buffer, static_cast<size_t>(n));
      } else {
        fd.reset();
      }
    };
    take(out.read, polls[0].revents, ended.out);
    take(err.read, polls[1].revents, ended.err);
  }
  const ExitStatus status = process.wait(Deadline::seconds(60));
  ended.code = status.signal == 0 ? status.exit_code : 128 + status.signal;
  return ended;
}

Ended lockstep(Words words) {
  words.insert(words.begin(), lockstep_program());
  return run(words);
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-cli-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

// A Python that has torch: LOCKSTEP_TEST_PYTHON, the source tree's .venv, or python3; "" if none
// has.
std::string torch_python() {
  static const std::string kFound = [] {
    for (const std::string& candidate :
         {process_env()("LOCKSTEP_TEST_PYTHON").value_or(""),
          std::string(LOCKSTEP_SOURCE_DIR "/.venv/bin/python3"), std::string("python3")}) {
      try {
        if (!candidate.empty() &&
            run({candidate, "-c",
                 "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"})
                    .code == 0) {
          return find_program(candidate);
        }
      } catch (const LaunchError&) {
        // Not there: try the next one.
      }
    }
    return std::string();
  }();
  return kFound;
}

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
      {"lockstep run: --nnodes=2 asks for several hosts", {"run", "--nnodes=2", "/bin/true"}},
      {"lockstep run: redirects or tee name local rank 5", {"run", "-t", "5:3", "/bin/true"}},
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

TEST(LockstepRun, NoUseEnvPassesTheLocalRank) {
  EXPECT_THAT(lines_of(lockstep({"run", "-np", "2", "--no-use-env", "/bin/echo", "a"}).out),
              UnorderedElementsAre("--local-rank=0 a", "--local-rank=1 a"));
}

TEST(LockstepRun, TheLaunchLineOfTutorialThree) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  const Folder folder;
  const std::string script =
      folder.write("multi-gpu-distributed-cls.py",
                   "import os, sys\nprint(os.environ['LOCAL_RANK'], *sys.argv[1:])\n");
  const Ended ended = lockstep({"run", "--nnode=1", "--node_rank=0", "--nproc_per_node=2",
                                "--use_env", script, "--local_world_size=2"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("0 --local_world_size=2", "1 --local_world_size=2"));
}

// Everything that torchrun sets is set, to the same values but for ports and identifiers.
TEST(BesideTorchrun, TheSameVariables) {
  const std::string python = torch_python();
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
  const std::string python = torch_python();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const Folder folder;
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
  const std::string python = torch_python();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const Folder folder;
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

}  // namespace cli_mp_test
}  // namespace lockstep::cli
