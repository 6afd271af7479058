// The command lockstep doctor with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/cli/doctor_peer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::cli {
namespace doctor_mp_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using Words = std::vector<std::string>;

struct Ended {
  int code = 0;
  std::string out;  // and stderr
};

// A started `lockstep doctor`.
class Doctor {
 public:
  explicit Doctor(Words words, const std::string& secret = "the secret of this test")
      : pipe_(make_pipe()), process_(options(std::move(words), secret)) {
    pipe_.write.reset();
  }
  // Reads until `text` was there.
  void await(const std::string& text) {
    const Deadline deadline = Deadline::seconds(20);
    while (out_.find(text) == std::string::npos && !deadline.expired() && read()) {
    }
    EXPECT_THAT(out_, HasSubstr(text));
  }
  Ended finish() {
    while (read()) {
    }
    const ExitStatus status = process_.wait(Deadline::seconds(30));
    return {status.signal == 0 ? status.exit_code : 128 + status.signal, out_};
  }
  // The port of "... --peer ADDRESS:PORT".
  std::string port() const {
    const auto colon = out_.rfind(':');
    return out_.substr(colon + 1, out_.find_first_not_of("0123456789", colon + 1) - colon - 1);
  }

 private:
  SubprocessOptions options(Words words, const std::string& secret) const {
    words.insert(
        words.begin(),
        {(std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lockstep")
             .string(),
         "doctor"});
    SubprocessOptions options;
    options.command = words;
    options.stdout_fd = options.stderr_fd = pipe_.write.get();
    options.env =
        launch::merge_environment(launch::current_environment(), {{"LOCKSTEP_SECRET", secret}});
    return options;
  }
  bool read() {
    pollfd waiting{pipe_.read.get(), POLLIN, 0};
    ::poll(&waiting, 1, 30000);
    char buffer[65536];
    const ssize_t n = ::read(pipe_.read.get(), buffer, sizeof buffer);
    if (n > 0) out_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  Pipe pipe_;
  Subprocess process_;
  std::string out_;
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
  EXPECT_THAT(listened.out, HasSubstr("refused 127.0.0.1:"));
}

TEST(LockstepDoctor, NobodyThereIsAProblem) {
  EXPECT_THAT(Doctor({"--listen", "0", "--interface", "lo", "--timeout", "0.2"}).finish().out,
              HasSubstr("nobody came within"));
  const Ended visitor = Doctor({"--peer", "127.0.0.1:9", "--timeout", "0.2"}).finish();
  EXPECT_EQ(visitor.code, 1);
  EXPECT_THAT(visitor.out, HasSubstr("is lockstep doctor --listen running there"));
  const Ended without = Doctor({"--peer", "127.0.0.1:9"}, "").finish();
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.out, HasSubstr("lockstep doctor: --listen and --peer need a secret"));
}

TEST(LockstepDoctor, ATraceFolderThatIsNoneIsAnError) {
  const Ended ended = Doctor({"--trace", "/no/such/folder"}).finish();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("lockstep doctor: /no/such/folder cannot be read"));
}

}  // namespace doctor_mp_test
}  // namespace lockstep::cli
