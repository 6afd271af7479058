// Cutting the ranks' output into pieces, and joining the pieces of several ranks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/log_spec.h"
#include "lockstep/launch/worker.h"

namespace lockstep::inline v0::launch {
namespace output_test {

using testing::ElementsAre;
using testing::IsEmpty;

Piece line(const std::string& text) {
  return {text, Piece::End::kLine};
}
Piece progress(const std::string& text) {
  return {text, Piece::End::kProgress};
}
Piece forced(const std::string& text) {
  return {text, Piece::End::kForced};
}

TEST(LineSplitter, CutsAtLineEnds) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.feed("one\ntwo\r\nthr"), ElementsAre(line("one\n"), line("two\r\n")));
  EXPECT_TRUE(splitter.pending());
  EXPECT_THAT(splitter.feed("ee\n\n"), ElementsAre(line("three\n"), line("\n")));
  EXPECT_FALSE(splitter.pending());
  EXPECT_THAT(splitter.flush(), IsEmpty());
}

TEST(LineSplitter, ProgressUpdatesAreGivenOutAtOnce) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.feed("10%\r"), ElementsAre(progress("10%\r")));
  EXPECT_THAT(splitter.feed("\n"), ElementsAre(line("\n"))) << "a line's end that was cut in two";
  EXPECT_THAT(splitter.feed("\r20%"), ElementsAre(progress("\r")));
  EXPECT_THAT(splitter.feed("\r30%"), ElementsAre(progress("20%\r")));
  EXPECT_THAT(splitter.flush(), ElementsAre(forced("30%")));
}

TEST(LineSplitter, LongLinesAreCutAtTheLimit) {
  LineSplitter splitter(4);
  EXPECT_THAT(splitter.feed("abcdefghi\n"),
              ElementsAre(forced("abcd"), forced("efgh"), line("i\n")));
  EXPECT_THAT(splitter.feed("abc\n"), ElementsAre(line("abc\n")));
  EXPECT_THAT(splitter.feed("abcd"), IsEmpty());
  EXPECT_THAT(splitter.feed("\n"), ElementsAre(line("abcd\n"))) << "its end does not count";
}

TEST(LineSplitter, LosesNoByteWhereverTheStreamIsCut) {
  const std::string stream = "a\r\nbb\rccc\n\n\r\r\nlong long line\nrest";
  for (size_t step = 1; step <= stream.size(); ++step) {
    LineSplitter splitter(6);
    std::string joined;
    for (size_t at = 0; at < stream.size(); at += step) {
      for (const Piece& piece : splitter.feed(stream.substr(at, step))) joined += piece.text;
    }
    for (const Piece& piece : splitter.flush()) joined += piece.text;
    EXPECT_EQ(joined, stream);
  }
}

TEST(LineJoiner, WholeLinesPassWithTheirPrefix) {
  LineJoiner joiner(false);
  EXPECT_EQ(joiner.join(0, line("a\n"), "[0]: "), "[0]: a\n");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "b\n");
}

TEST(LineJoiner, ACutLineGoesOnWithoutPrefix) {
  LineJoiner joiner(false);
  EXPECT_EQ(joiner.join(0, forced("a"), "[0]: "), "[0]: a");
  EXPECT_EQ(joiner.join(0, line("b\n"), "[0]: "), "b\n");
}

TEST(LineJoiner, AnotherRanksLineEndsAnUnfinishedOne) {
  LineJoiner joiner(false);
  joiner.join(0, forced("prompt"), "");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "\nb\n");
  joiner.join(0, progress("10%\r"), "");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "\nb\n") << "no terminal: a bar is text as any other";
  joiner.join(0, forced("rest"), "");
  EXPECT_EQ(joiner.close(), "\n");
  EXPECT_EQ(joiner.close(), "");
}

TEST(LineJoiner, OnATerminalAProgressBarIsWipedForALine) {
  LineJoiner joiner(true);
  EXPECT_EQ(joiner.join(0, progress("10%\r"), ""), "10%\r");
  EXPECT_EQ(joiner.join(0, progress("20%\r"), ""), "20%\r");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "\r\x1b[Kb\n");
  joiner.join(0, progress("\r"), "");
  joiner.join(0, forced("30%"), "");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "\r\x1b[Kb\n")
      << "a bar that begins with the carriage return";
  joiner.join(0, line("done\n"), "");
  joiner.join(0, forced("prompt"), "");
  EXPECT_EQ(joiner.join(1, line("b\n"), ""), "\nb\n") << "a prompt is kept";
}

TEST(LineJoiner, ALinesEndCutInTwoHasNoPrefix) {
  LineJoiner joiner(false);
  joiner.join(0, progress("a\r"), "[0]: ");
  EXPECT_EQ(joiner.join(0, line("\n"), "[0]: "), "\n");
}

TEST(Console, KeepsWhatAFullPipeDoesNotTake) {
  Pipe pipe = make_pipe();
  Console console(pipe.write.get());
  const std::string text = std::string(1 << 20, 'x') + "\n";
  console.put(0, line(text), "");
  console.flush();
  EXPECT_GT(console.backlog(), 0u);
  std::string received(text.size(), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::read(pipe.read.get(), received.data() + have, text.size() - have);
    ASSERT_GT(n, 0);
    have += static_cast<size_t>(n);
    console.flush();
  }
  EXPECT_TRUE(received == text);
  EXPECT_EQ(console.backlog(), 0u);
}

StreamPlan shown_on(Console& console) {
  StreamPlan plan;
  plan.console = &console;
  return plan;
}

// A reader that catches up while the agent prepares to wait: the rank blocks in its write, and its
// stream is the only event left.
TEST(OutputStream, IsReadOnOnceTheConsoleHasBeenWritten) {
  const UniqueFd sink(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Console console(sink.get());
  OutputStream stream(shown_on(console), 0);
  ASSERT_EQ(::write(stream.child_fd(), "next\n", 5), 5);
  console.put(0, line(std::string(2 << 20, 'x') + "\n"), "");
  bool ready = false;
  PollSet polls;
  stream.watch(polls, [&] { ready = true; });
  console.watch(polls);
  console.flush();
  ASSERT_EQ(console.backlog(), 0u);
  polls.wake_at(std::chrono::steady_clock::now() + std::chrono::seconds(10));
  polls.wait();
  EXPECT_TRUE(ready);
}

TEST(OutputStream, WaitsForAConsoleThatIsFarBehind) {
  const Pipe pipe = make_pipe();
  Console console(pipe.write.get());
  OutputStream stream(shown_on(console), 0);
  ASSERT_EQ(::write(stream.child_fd(), "next\n", 5), 5);
  console.put(0, line(std::string(2 << 20, 'x') + "\n"), "");
  console.flush();
  bool ready = false;
  PollSet polls;
  stream.watch(polls, [&] { ready = true; });
  polls.wake_at(std::chrono::steady_clock::now());
  polls.wait();
  EXPECT_FALSE(ready);
}

TEST(Tail, KeepsTheLastTwentyLinesAndAnUnfinishedOne) {
  Tail tail;
  for (int i = 0; i < 30; ++i) tail.add(line(std::to_string(i) + "\r\n"));
  tail.add(progress("10%\r"));
  tail.add(forced("cut"));
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), 21u);
  EXPECT_EQ(lines.front(), "10");
  EXPECT_EQ(lines[19], "29");
  EXPECT_EQ(lines.back(), "cut");
}

const FirstLines::Time kThen = FirstLines::Time() + std::chrono::hours(1);

TEST(FirstLines, AreHeldForAMoment) {
  FirstLines first(2);
  EXPECT_THAT(first.pass({line("a\n")}, kThen), IsEmpty());
  EXPECT_EQ(first.next_time(), kThen + FirstLines::kHold);
  EXPECT_THAT(first.on_time(kThen), IsEmpty());
  EXPECT_THAT(first.on_time(kThen + FirstLines::kHold), ElementsAre(line("a\n")));
  EXPECT_FALSE(first.next_time());
  EXPECT_THAT(first.pass({line("b\n")}, kThen), IsEmpty());
  EXPECT_THAT(first.pass({line("c\n")}, kThen), ElementsAre(line("b\n"), line("c\n")))
      << "only the first two";
  EXPECT_EQ(first.text(), "a\nb\n");
}

TEST(FirstLines, ABarIsNotHeld) {
  FirstLines first(5);
  EXPECT_THAT(first.pass({line("a\n"), progress("10%\r")}, kThen),
              ElementsAre(line("a\n"), progress("10%\r")));
  EXPECT_THAT(first.pass({line("b\n")}, kThen), ElementsAre(line("b\n")));
}

TEST(FirstLines, AreDroppedIfTheyRepeatAnothersEnd) {
  FirstLines first(5);
  first.pass({line("bad option\n")}, kThen);
  first.do_not_repeat("a warning\nbad option\n");
  EXPECT_THAT(first.release(), IsEmpty());
  first.pass({line("something else\n")}, kThen);
  EXPECT_THAT(first.release(), ElementsAre(line("something else\n")));
}

TEST(Redirects, TorchrunsValues) {
  const RedirectMap all = parse_redirects("3");
  EXPECT_EQ(redirect_of(all, 7), Redirect::kBoth);
  const RedirectMap some = parse_redirects("0:3,1:0,2:1,3:2");
  EXPECT_EQ(redirect_of(some, 0), Redirect::kBoth);
  EXPECT_EQ(redirect_of(some, 1), Redirect::kNone);
  EXPECT_EQ(redirect_of(some, 2), Redirect::kStdout);
  EXPECT_EQ(redirect_of(some, 3), Redirect::kStderr);
  EXPECT_EQ(redirect_of(some, 4), Redirect::kNone);
  for (const char* wrong : {"", "4", "-1", "x", "0:4", "0:", ":3", "0:3,", "0:3;1:1", "a:1"}) {
    EXPECT_THROW(parse_redirects(wrong), InvalidArgument) << wrong;
  }
}

}  // namespace output_test
}  // namespace lockstep::inline v0::launch
