// The agent with real processes.
#include "lockstep/launch/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::launch {
namespace agent_mp_test {

using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

std::string program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "launch_test_program")
      .string();
}

// A started program whose output is collected.
class Running {
 public:
  explicit Running(const Words& words)
      : out_(make_pipe()), err_(make_pipe()), process_(options(words)) {
    out_.write.reset();
    err_.write.reset();
  }
  Running(Running&&) = delete;

  Subprocess& process() { return process_; }
  // Reads until `text` has appeared on stdout, `times` times.
  void await_output(const std::string& text, int times = 1) {
    const Deadline deadline = Deadline::seconds(20);
    const auto seen = [&] {
      int count = 0;
      for (size_t at = 0; (at = out.find(text, at)) != std::string::npos; ++at) ++count;
      return count;
    };
    while (seen() < times && !deadline.expired()) read(20);
    EXPECT_GE(seen(), times) << text << " in " << out;
  }
  // Reads to the end; the exit code, or 128 + signal.
  int finish() {
    while (out_.read || err_.read) read(1000);
    const ExitStatus status = process_.wait(Deadline::seconds(30));
    return status.signal == 0 ? status.exit_code : 128 + status.signal;
  }

  std::string out, err;

 private:
  SubprocessOptions options(const Words& words) const {
    SubprocessOptions options;
    options.command = words;
    options.stdout_fd = out_.write.get();
    options.stderr_fd = err_.write.get();
    return options;
  }
  void read(int timeout_ms) {
    pollfd polls[] = {{out_.read.get(), POLLIN, 0}, {err_.read.get(), POLLIN, 0}};
    ::poll(polls, 2, timeout_ms);
    take(out_.read, polls[0].revents, out);
    take(err_.read, polls[1].revents, err);
  }
  static void take(UniqueFd& fd, short events, std::string& text) {
    if (events == 0) return;
    char buffer[65536];
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    } else {
      fd.reset();
    }
  }

  Pipe out_, err_;
  Subprocess process_;
};

struct Ended {
  int code = 0;
  std::string out, err;
  double seconds = 0;
};

Ended run_words(Words words) {
  words.insert(words.begin(), program());
  const auto start = std::chrono::steady_clock::now();
  Running running(words);
  Ended ended;
  ended.code = running.finish();
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.out = running.out;
  ended.err = running.err;
  return ended;
}

Ended run(Words agent_words, const Words& command) {
  agent_words.insert(agent_words.begin(), "run");
  agent_words.push_back("--");
  agent_words.insert(agent_words.end(), command.begin(), command.end());
  return run_words(agent_words);
}

Ended run_shell(Words agent_words, const std::string& script) {
  return run(std::move(agent_words), {"/bin/sh", "-c", script});
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool alive(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  return line[line.rfind(')') + 2] != 'Z';
}

bool dies_soon(int pid) {
  const Deadline deadline = Deadline::seconds(5);
  while (alive(pid) && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

// The numbers after "pid " in the output.
std::vector<int> pids_in(const std::string& text) {
  std::vector<int> pids;
  for (size_t at = 0; (at = text.find("pid ", at)) != std::string::npos; at += 4) {
    pids.push_back(std::stoi(text.substr(at + 4)));
  }
  return pids;
}

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
  const Ended ended =
      run_shell({"nproc", "2"}, "[ $RANK = 0 ] && sleep 30; echo bad option >&2; exit 2");
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.err, "bad option\n");
  EXPECT_LT(ended.seconds, 5);
}

TEST(Agent, AnErrorFileThatARankWroteIsQuoted) {
  const std::string script =
      R"(if [ $RANK = 1 ]; then echo '{"message": {"message": "ValueError: boom", "extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE; exit 1; fi; sleep 30)";
  EXPECT_THAT(run_shell({"nproc", "2"}, script).err, HasSubstr("  error: ValueError: boom\n"));
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
                "if [ $RANK = 1 ]; then sleep 0.1; exit 1; fi; trap '' TERM; echo pid $$; "
                "while :; do sleep 0.05; done");
  EXPECT_EQ(ended.code, 1);
  EXPECT_GE(ended.seconds, 0.3);
  EXPECT_LT(ended.seconds, 5);
  for (const int pid : pids_in(ended.out)) EXPECT_FALSE(alive(pid));
}

TEST(Agent, NothingThatARankStartedIsLeft) {
  // One rank fails while its and the other's children run; then a rank that ends well leaves a
  // child behind.
  for (const char* end : {"sleep 0.2; exit 1", "exit 0"}) {
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

TEST(Agent, TheRanksDieWithTheAgent) {
  Running agent({program(), "run", "nproc", "2", "--", program(), "rank", "wait"});
  agent.await_output("of rank 0");
  agent.await_output("of rank 1");
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
    EXPECT_EQ(agent.finish(), 128 + signal);
    EXPECT_THAT(lines_of(agent.out), testing::Contains("got it").Times(2));
    EXPECT_THAT(agent.err, Not(HasSubstr("lockstep"))) << "no failure to report";
  }
}

TEST(Agent, ASecondInterruptKillsAtOnce) {
  Running agent({program(), "run", "nproc", "2", "grace", "60000", "--", "/bin/sh", "-c",
                 "trap '' INT TERM; echo pid $$; while :; do sleep 0.05; done"});
  agent.await_output("\n", 2);
  const auto start = std::chrono::steady_clock::now();
  ::kill(agent.process().pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
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
  // each has its own store.
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

TEST(Agent, LinesStayWholeWhenAllRanksWriteAtOnce) {
  // Each rank writes lines in small, flushed parts.
  const std::string script =
      "i=0; while [ $i -lt 200 ]; do printf 'rank-%s-' $RANK; printf '%s' abcdefgh; printf ' "
      "%d\\n' $i; i=$((i+1)); done";
  const Ended ended = run_shell({"nproc", "4"}, script);
  EXPECT_EQ(ended.code, 0);
  std::map<char, int> next;
  for (const std::string& line : lines_of(ended.out)) {
    ASSERT_EQ(line.size() > 15 ? line.substr(0, 5) : line, "rank-");
    const char rank = line[5];
    EXPECT_EQ(line, std::string("rank-") + rank + "-abcdefgh " + std::to_string(next[rank]++));
  }
  EXPECT_THAT(next, UnorderedElementsAre(std::pair('0', 200), std::pair('1', 200),
                                         std::pair('2', 200), std::pair('3', 200)));
}

TEST(Agent, UnfinishedAndVeryLongLinesArriveWhole) {
  const Ended ended = run_shell(
      {"nproc", "2"}, "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; printf 'last %s' $RANK");
  Words lines = lines_of(ended.out);
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, testing::ElementsAre(std::string(300000, '0'), std::string(300000, '1'),
                                          "last 0", "last 1"));
}

TEST(Agent, PrefixNamesTheRank) {
  const Ended ended = run_shell({"nproc", "2", "prefix"}, "echo a; echo b >&2");
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("[0]: a", "[1]: a"));
  EXPECT_THAT(lines_of(ended.err), UnorderedElementsAre("[0]: b", "[1]: b"));
}

TEST(Agent, ProgressUpdatesPassPromptly) {
  Running agent({program(), "run", "--", "/bin/sh", "-c", "printf '10%%\\r'; sleep 30"});
  agent.await_output("10%\r");
  agent.process().signal(SIGTERM);
  agent.finish();
}

class LogFiles : public testing::Test {
 protected:
  LogFiles() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-agent-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
  }
  ~LogFiles() override { std::filesystem::remove_all(folder_); }
  // The text of attempt_0/<file> of the only run.
  std::string text(const std::string& file) const {
    std::ifstream stream(std::filesystem::directory_iterator(folder_)->path() / "attempt_0" / file);
    return stream ? std::string(std::istreambuf_iterator<char>(stream), {}) : "(none)";
  }
  Ended run_logged(Words words, const std::string& script) {
    words.insert(words.end(), {"nproc", "2", "log-dir", folder_.string()});
    return run_shell(words, script);
  }
  std::filesystem::path folder_;
};

TEST_F(LogFiles, RedirectsAndTeeHaveTorchrunsLayout) {
  const Ended ended =
      run_logged({"redirects", "0:3", "tee", "1:1"}, "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "out 1\n");
  EXPECT_EQ(ended.err, "err 1\n");
  EXPECT_EQ(text("0/stdout.log"), "out 0\n");
  EXPECT_EQ(text("0/stderr.log"), "err 0\n");
  EXPECT_EQ(text("1/stdout.log"), "out 1\n");
  EXPECT_EQ(text("1/stderr.log"), "(none)");
}

TEST_F(LogFiles, TheReportReadsARedirectedStream) {
  const Ended ended =
      run_logged({"redirects", "3"}, "[ $RANK = 0 ] && sleep 30; echo hidden >&2; exit 2");
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("    hidden\n"));
}

TEST_F(LogFiles, RanksThatAreNotShownStillWriteTheirFiles) {
  const Ended ended = run_logged({"tee", "3", "show", "1"}, "echo out $RANK");
  EXPECT_EQ(ended.out, "out 1\n");
  EXPECT_EQ(text("0/stdout.log"), "out 0\n");
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

TEST(Agent, StdinIsInherited) {
  Pipe pipe = make_pipe();
  ASSERT_EQ(::write(pipe.write.get(), "typed\n", 6), 6);
  pipe.write.reset();
  Pipe out = make_pipe();
  SubprocessOptions options;
  options.command = {program(), "run", "--", "/bin/cat"};
  options.stdin_fd = pipe.read.get();
  options.stdout_fd = out.write.get();
  Subprocess agent(options);
  out.write.reset();
  EXPECT_TRUE(agent.wait(Deadline::seconds(10)).ok());
  char buffer[16] = {};
  EXPECT_EQ(::read(out.read.get(), buffer, sizeof buffer), 6);
}

TEST(Agent, ALostReaderEndsTheJob) {
  Pipe out = make_pipe();
  SubprocessOptions options;
  options.command = {program(), "run", "--",
                     "/bin/sh", "-c",  "while :; do echo y; sleep 0.01; done"};
  options.stdout_fd = out.write.get();
  Subprocess agent(options);
  out.write.reset();
  out.read.reset();
  const ExitStatus status = agent.wait(Deadline::seconds(10));
  EXPECT_EQ(status.exit_code, 128 + SIGPIPE);
}

TEST(Agent, ASlowReaderLosesNothing) {
  Pipe out = make_pipe();
  SubprocessOptions options;
  options.command = {program(), "run", "--",
                     "/bin/sh", "-c",  "head -c 5000000 /dev/zero | tr '\\0' 'x'"};
  options.stdout_fd = out.write.get();
  Subprocess agent(options);
  out.write.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  size_t total = 0;
  char buffer[65536];
  for (ssize_t n; (n = ::read(out.read.get(), buffer, sizeof buffer)) > 0;
       total += static_cast<size_t>(n)) {
  }
  EXPECT_TRUE(agent.wait(Deadline::seconds(10)).ok());
  // The line is cut every MiB, and the last cut one is ended.
  EXPECT_GE(total, 5000000u);
  EXPECT_LE(total, 5000010u);
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

TEST(Spawn, EachCallHasItsOwnRanks) {
  const Ended ended = run_words({"spawn", "twice"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("first call, rank 0 of 2", "first call, rank 1 of 2",
                                   "second call, rank 0 of 3", "second call, rank 1 of 3",
                                   "second call, rank 2 of 3"));
}

TEST(Spawn, AnExceptionOfARankIsReported) {
  const Ended ended = run_words({"spawn", "throw"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 2: error: rank 2 is unhappy"),
                               HasSubstr("rank 2 of 3 failed first")));
}

TEST(Spawn, ExitCodeTwoPassesThrough) {
  EXPECT_EQ(run_words({"spawn", "exit2"}).code, 2);
}

TEST(Spawn, RanksCannotSpawnRanks) {
  const Ended ended = run_words({"spawn", "nested"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("ranks cannot spawn ranks"));
}

}  // namespace agent_mp_test
}  // namespace lockstep::launch
