#include "lockstep/core/process_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::inline v0 {
namespace process_state_test {

// A child that stops itself by `signal`; constructed once it has stopped.
class Stopped {
 public:
  explicit Stopped(int signal) : pid_(::fork()) {
    if (pid_ == 0) {
      // The terminal's signals stop no process in an orphaned group, as this test's own may be.
      ::setpgid(0, 0);
      ::raise(signal);
      ::_exit(0);
    }
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT);
  }
  ~Stopped() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  int pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(ProcessState, AStoppedChildIsSeenWithItsSignal) {
  const Stopped by_stop(SIGSTOP);
  EXPECT_EQ(process_state(by_stop.pid()), 'T');
  EXPECT_EQ(stopped_by(by_stop.pid()), "SIGSTOP");
  EXPECT_EQ(pid_words(by_stop.pid()),
            "pid " + std::to_string(by_stop.pid()) + ", stopped by SIGSTOP");
  // As a job in the background that reads from the terminal.
  const Stopped by_terminal(SIGTTIN);
  EXPECT_EQ(stopped_by(by_terminal.pid()), "SIGTTIN");
  EXPECT_EQ(stopped_by(by_terminal.pid()), "SIGTTIN") << "looking changes nothing";
}

TEST(ProcessState, WhoRunsOrIsNotThereIsNotStopped) {
  EXPECT_EQ(process_state(::getpid()), 'R');
  EXPECT_EQ(stopped_by(::getpid()), "");
  EXPECT_EQ(pid_words(::getpid()), "pid " + std::to_string(::getpid()));
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  EXPECT_EQ(process_state(gone), '\0');
  EXPECT_EQ(stopped_by(gone), "");
  EXPECT_EQ(process_state(0), '\0');
  EXPECT_EQ(process_state(-1), '\0');
}

}  // namespace process_state_test
}  // namespace lockstep::inline v0
