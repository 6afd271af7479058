// The ranks' output as the agent writes it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/launch_test_support.h"

namespace lockstep::inline v0::launch {
namespace output_mp_test {

using namespace launch_test_support;  // NOLINT: a test's own helpers
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

TEST(AgentOutput, LinesStayWholeWhenAllRanksWriteAtOnce) {
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

TEST(AgentOutput, UnfinishedAndVeryLongLinesArriveWhole) {
  const Ended ended = run_shell(
      {"nproc", "2"}, "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; printf 'last %s' $RANK");
  Words lines = lines_of(ended.out);
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, testing::ElementsAre(std::string(300000, '0'), std::string(300000, '1'),
                                          "last 0", "last 1"));
}

TEST(AgentOutput, PrefixNamesTheRank) {
  const Ended ended = run_shell({"nproc", "2", "prefix"}, "echo a; echo b >&2");
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("[0]: a", "[1]: a"));
  EXPECT_THAT(lines_of(ended.err), UnorderedElementsAre("[0]: b", "[1]: b"));
}

TEST(AgentOutput, ProgressUpdatesPassPromptly) {
  Running agent({program(), "run", "--", "/bin/sh", "-c", "printf '10%%\\r'; sleep 30"});
  agent.await_output("10%\r");
  agent.process().signal(SIGTERM);
  agent.finish();
}

// A terminal of the test's own, on which the agent's output appears.
TEST(AgentOutput, OnATerminalRankZeroIsToldAndBarsAreWipedForLines) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0)
    GTEST_SKIP() << "no pseudo-terminals";
  UniqueFd terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  const winsize size{24, 132, 0, 0};
  ::ioctl(terminal.get(), TIOCSWINSZ, &size);
  SubprocessOptions options;
  options.command = {program(),
                     "run",
                     "nproc",
                     "2",
                     "--",
                     "/bin/sh",
                     "-c",
                     "if [ $RANK = 0 ]; then echo tty=$LOCKSTEP_TTY columns=$LOCKSTEP_COLUMNS; "
                     "printf '10%%\\r'; sleep 30; "
                     "else sleep 1; echo a line; echo tty=$LOCKSTEP_TTY; fi"};
  options.stdout_fd = options.stderr_fd = terminal.get();
  Subprocess agent(options);
  terminal.reset();
  std::string text;
  const Deadline deadline = Deadline::seconds(10);
  while (text.find("tty=\r\n") == std::string::npos && !deadline.expired()) {
    pollfd waiting{master.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 100) <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(master.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(text, "tty=1 columns=132\r\n10%\r\r\x1b[Ka line\r\ntty=\r\n");
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait(Deadline::seconds(10)).exit_code, 128 + SIGTERM);
}

class LogFiles : public testing::Test {
 protected:
  // The text of attempt_0/<file> of the only run.
  std::string text(const std::string& file) const {
    std::ifstream stream(std::filesystem::directory_iterator(folder_.path())->path() / "attempt_0" /
                         file);
    return stream ? std::string(std::istreambuf_iterator<char>(stream), {}) : "(none)";
  }
  Ended run_logged(Words words, const std::string& script) {
    words.insert(words.end(), {"nproc", "2", "log-dir", folder_.path().string()});
    return run_shell(words, script);
  }
  TestDirectory folder_;
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

// A limit of 4 MiB per file simulates a disk that fills up.
TEST_F(LogFiles, WhatADiskDoesNotTakeIsToldCountedAndAFailure) {
  for (const bool allowed : {false, true}) {
    for (const char* streams : {"redirects", "tee"}) {
      const std::string folder = folder_.path().string() + (allowed ? "/allowed-" : "/") + streams;
      Words words{"/bin/sh", "-c",      "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\"",
                  program(), "run",     "nproc",
                  "2",       "log-dir", folder,
                  streams,   "1"};
      if (allowed) words.emplace_back("allow-lost-logs");
      const Words command{"--", "/bin/sh", "-c",
                          "[ $RANK = 1 ] || { yes 'a line that is wanted' | head -c 6000000; }"};
      words.insert(words.end(), command.begin(), command.end());
      Running agent(words);
      EXPECT_EQ(agent.finish(), allowed ? 0 : 1) << agent.err;
      uintmax_t kept = 0;
      for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
        if (file.is_regular_file()) kept += file.file_size();
      }
      ASSERT_LT(kept, 6000000u) << "this shell's ulimit sets no limit";
      const Words lines = lines_of(agent.err);
      ASSERT_EQ(lines.size(), 2u) << agent.err;
      EXPECT_THAT(lines[0], AllOf(HasSubstr("/0/stdout.log cannot be written: File too large"),
                                  HasSubstr("what the ranks write is lost until there is room")));
      EXPECT_THAT(lines[1],
                  HasSubstr("[lockstep] " + std::to_string(6000000 - kept) +
                            " bytes of the ranks' output are missing from the log files"));
      EXPECT_EQ(lines[1].find("--allow-lost-logs") == std::string::npos, allowed);
    }
  }
}

TEST(AgentOutput, StdinIsInherited) {
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

TEST(AgentOutput, ALostReaderEndsTheJob) {
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

// The reader neither reads nor closes: the launcher nevertheless ends when it is told to.
TEST(AgentOutput, AReaderThatDoesNotReadOnKeepsNobodyThatIsToldToEnd) {
  Pipe out = make_pipe();
  SubprocessOptions options;
  options.command = {program(), "run",     "nproc", "2",
                     "--",      "/bin/sh", "-c",    "while :; do echo line of $RANK; done"};
  options.stdout_fd = options.stderr_fd = out.write.get();
  Subprocess agent(options);
  // Writes until no line fits any more.
  const Deadline deadline = Deadline::seconds(60);
  pollfd room{out.write.get(), POLLOUT, 0};
  while (::poll(&room, 1, 0) != 0 && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_FALSE(deadline.expired());
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait(Deadline::seconds(60)).exit_code, 128 + SIGTERM);
}

TEST(AgentOutput, OneLogOfBothStreamsReadsAsItWasWritten) {
  const std::string script =
      "[ $RANK = 0 ] || exit 0; echo epoch 1 >&2; echo epoch 2 >&2; echo summary";
  Started agent({program(), "run", "nproc", "2", "--", "/bin/sh", "-c", script});
  EXPECT_EQ(agent.finish(), 0);
  EXPECT_EQ(agent.said, "epoch 1\nepoch 2\nsummary\n");
}

TEST(AgentOutput, AFullDiskIsAFailureAndOneLine) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  const TestDirectory folder;
  const UniqueFd err(::creat((folder / "err").c_str(), 0600));
  SubprocessOptions options;
  options.command = {program(), "run", "--", "/bin/echo", "hello"};
  options.stdout_fd = full.get();
  options.stderr_fd = err.get();
  EXPECT_EQ(Subprocess(options).wait(Deadline::seconds(10)).exit_code, 1);
  EXPECT_EQ(folder.read("err"),
            "[lockstep] the ranks' output cannot be written, stdout: No space left on device; make "
            "room or send it elsewhere\n");
}

TEST(AgentOutput, ASlowReaderLosesNothing) {
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
  for (ssize_t n = 1; n > 0; total += static_cast<size_t>(n)) {
    pollfd waiting{out.read.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 60000), 1) << "nothing came for a minute after " << total;
    n = std::max<ssize_t>(0, ::read(out.read.get(), buffer, sizeof buffer));
  }
  EXPECT_TRUE(agent.wait(Deadline::seconds(10)).ok());
  // The line is cut every MiB, and the last piece gets a line end.
  EXPECT_GE(total, 5000000u);
  EXPECT_LE(total, 5000010u);
}

}  // namespace output_mp_test
}  // namespace lockstep::inline v0::launch
