// The command lockstep doctor with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/cli/cli_test_support.h"
#include "lockstep/cli/doctor/peer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::cli {
namespace doctor_mp_test {

using cli_test_support::Ended;
using cli_test_support::lockstep_program;
using cli_test_support::Started;
using cli_test_support::Words;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// A started `lockstep doctor`.
class Doctor {
 public:
  explicit Doctor(Words words, const std::string& secret = "the secret of this test")
      : started_(command(std::move(words)), {{"LOCKSTEP_SECRET", secret}}) {}
  void await(const std::string& text) { started_.await(text); }
  pid_t pid() { return started_.process().pid(); }
  // `out` has stderr, too.
  Ended finish() {
    Ended ended;
    ended.code = started_.finish();
    ended.out = started_.said;
    return ended;
  }
  // The port of "... --peer ADDRESS:PORT".
  std::string port() const {
    const std::string& said = started_.said;
    const auto colon = said.rfind(':');
    return said.substr(colon + 1, said.find_first_not_of("0123456789", colon + 1) - colon - 1);
  }

 private:
  static Words command(Words words) {
    words.insert(words.begin(), {lockstep_program(), "doctor"});
    return words;
  }

  Started started_;
};

TEST(LockstepDoctor, LooksAtThisHost) {
  const Ended ended = Doctor({}).finish();
  EXPECT_THAT(ended.code, testing::AnyOf(0, 1)) << "a problem of this host is not one of the test";
  for (const char* topic :
       {"versions", "interfaces", "MTU", "name", "clock", "shared memory", "limits", "memory",
        "processors", "huge pages", "rank to rank", "processes", "backend shm", "backend tcp",
        "backend hierarchical", "backend gloo", "backend mpi", "backend nccl"})
    EXPECT_THAT(ended.out, HasSubstr(std::string("  ") + topic + " ")) << topic;
  EXPECT_THAT(ended.out, HasSubstr("LOCKSTEP_SECRET=(set)"));
  EXPECT_THAT(ended.out, Not(HasSubstr("the secret of this test")));
}

TEST(LockstepDoctor, TwoOfThemMeetAndTryBothWays) {
  Doctor listener({"--listen", "0", "--interface", "lo", "--timeout", "30"});
  listener.await("\n");
  const Ended visitor =
      Doctor({"--peer", "127.0.0.1:" + listener.port(), "--timeout", "30"}).finish();
  const Ended listened = listener.finish();
  EXPECT_EQ(visitor.code, 0) << visitor.out;
  EXPECT_EQ(listened.code, 0) << listened.out;
  EXPECT_THAT(visitor.out,
              AllOf(HasSubstr("way there"), HasSubstr("round trip"), HasSubstr("clocks"),
                    HasSubstr("large messages"), HasSubstr("reaches this host at 127.0.0.1")));
  EXPECT_THAT(listened.out, AllOf(HasSubstr("way here"), HasSubstr("way back")));
}

TEST(LockstepDoctor, AWrongSecretIsRefusedAndTheListenerGoesOn) {
  Doctor listener({"--listen", "0", "--interface", "lo", "--timeout", "30"});
  listener.await("\n");
  const std::string peer = "127.0.0.1:" + listener.port();
  const Ended stranger = Doctor({"--peer", peer, "--timeout", "10"}, "another one").finish();
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.out, HasSubstr("same text on both hosts"));
  EXPECT_EQ(Doctor({"--peer", peer, "--timeout", "30"}).finish().code, 0);
  const Ended listened = listener.finish();
  EXPECT_EQ(listened.code, 0) << listened.out;
  EXPECT_THAT(listened.out, HasSubstr("closed the connection from 127.0.0.1:"));
}

// The deadline is neither awaited nor exceeded.
TEST(LockstepDoctor, AListenerWithoutDescriptorsSaysSo) {
  Doctor listener({"--listen", "0", "--interface", "lo", "--timeout", "600"});
  listener.await("\n");
  const rlimit none{3, 3};  // it has the descriptors below
  ASSERT_EQ(::prlimit(listener.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  const HostPort where{"127.0.0.1", static_cast<uint16_t>(std::stoi(listener.port()))};
  UniqueFd visitor;
  try {
    visitor = connect_tcp(where, Deadline::seconds(2));
  } catch (const Error&) {
    // The listener had ended before connect_tcp() had looked at the connection.
  }
  const Ended listened = listener.finish();
  EXPECT_EQ(listened.code, 1) << listened.out;
  EXPECT_THAT(listened.out, HasSubstr("a visitor cannot be accepted: Too many open files"));
}

TEST(LockstepDoctor, NobodyThereIsAProblem) {
  EXPECT_THAT(Doctor({"--listen", "0", "--interface", "lo", "--timeout", "0.2"}).finish().out,
              HasSubstr("no other doctor came within"));
  const Ended visitor = Doctor({"--peer", "127.0.0.1:9", "--timeout", "0.2"}).finish();
  EXPECT_EQ(visitor.code, 1);
  EXPECT_THAT(visitor.out, HasSubstr("is lockstep doctor --listen running there"));
  const Ended without = Doctor({"--peer", "127.0.0.1:9"}, "").finish();
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.out, HasSubstr("lockstep doctor: --listen and --peer need a secret"));
}

TEST(LockstepDoctor, WhereNothingHasFailedItSaysSo) {
  const TestDirectory folder;
  const std::string traces = folder / "traces";
  EXPECT_EQ(cli_test_support::lockstep({"run", "--trace-dir", traces, "/bin/true"}).code, 0);
  const Ended none = Doctor({"--trace", traces}).finish();
  EXPECT_EQ(none.code, 1) << "or the name is another";
  EXPECT_THAT(none.out, AllOf(HasSubstr(traces + " cannot be read, since it does not exist; "),
                              HasSubstr("there are none where nothing has failed")));
  std::filesystem::create_directory(traces);
  const Ended empty = Doctor({"--trace", traces, "--json", folder / "report.json"}).finish();
  EXPECT_EQ(empty.code, 0);
  EXPECT_THAT(empty.out, testing::StartsWith("No traces in " + traces + ": traces are written"));
  EXPECT_THAT(folder.read("report.json"), HasSubstr("\"wrong\": false"));
}

TEST(LockstepDoctor, ATraceFolderThatIsNoneIsAnError) {
  const Ended ended = Doctor({"--trace", "/no/such/folder"}).finish();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("lockstep doctor: /no/such/folder cannot be read"));
}

TEST(LockstepDoctor, ATimelineOfAnotherProgramIsOneLine) {
  const TestDirectory folder;
  const std::string file =
      folder.write("trace.json", R"({"schemaVersion":1,"traceEvents":[],"traceName":"x"})");
  for (const std::string& given : {file, folder.path().string()}) {
    const Ended ended = Doctor({"--trace", given}).finish();
    EXPECT_EQ(ended.code, 1);
    EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
    EXPECT_THAT(ended.out, HasSubstr("lockstep doctor: " + file +
                                     ": a trace of another program, or none: it has no "
                                     "otherData.lockstep_trace; lockstep train --trace-steps"));
  }
}

}  // namespace doctor_mp_test
}  // namespace lockstep::inline v0::cli
