#include "lockstep/train/run_claim.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/file_lock.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/refused_calls.h"

namespace lockstep::inline v0::run_claim_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

EnvLookup of_job(const std::string& id) {
  return [id](std::string_view name) {
    return name == "TORCHELASTIC_RUN_ID" && !id.empty() ? std::optional(id) : std::nullopt;
  };
}

std::string refusal(const TestDirectory& dir, const EnvLookup& env) {
  return message_of<InvalidArgument>([&] { RunClaim claim(dir.path(), env); });
}
std::string refusal(const TestDirectory& dir, const std::string& job) {
  return refusal(dir, of_job(job));
}

TEST(RunClaim, AnotherJobIsRefusedUntilTheFirstIsDone) {
  const TestDirectory dir;
  {
    const RunClaim first(dir.path(), of_job("a"));
    EXPECT_TRUE(first.is_held());
    for (const char* job : {"", "b"})
      EXPECT_THAT(refusal(dir, job),
                  AllOf(HasSubstr(dir.path().string()), HasSubstr("in use"),
                        HasSubstr("process " + std::to_string(::getpid()) + " is at work there"),
                        Not(HasSubstr("remove"))));
  }
  EXPECT_THAT(dir.names(), IsEmpty());
  EXPECT_TRUE(RunClaim(dir.path(), of_job("b")).is_held());
}

TEST(RunClaim, AKilledJobLeavesNoLock) {
  const TestDirectory dir;
  const pid_t child = ::fork();
  if (child == 0) {
    const RunClaim claim(dir.path(), of_job("a"));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_FALSE(dir.names().empty());
  EXPECT_TRUE(RunClaim(dir.path(), of_job("b")).is_held());
  EXPECT_THAT(dir.names(), IsEmpty());
}

// Its agent may have started it anew before the former rank 0 is gone.
TEST(RunClaim, AnAttemptOfTheSameJobIsWaitedFor) {
  const TestDirectory dir;
  std::optional<RunClaim> first;
  first.emplace(dir.path(), of_job("a"));
  bool held = false;
  std::thread second([&] { held = RunClaim(dir.path(), of_job("a")).is_held(); });
  first.reset();
  second.join();
  EXPECT_TRUE(held);
}

// What a file says that a process elsewhere has written; of NFSv3 its lock outlives its host.
std::string by_another_host() {
  return R"({"pid": 1, "host": "elsewhere", "space": "x", "start": "1", "job": "a"})";
}

TEST(RunClaim, AHostThatIsGoneForGoodIsNamedWithWhatToRemove) {
  const TestDirectory dir;
  const UniqueFd held(::open((dir / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(try_lock(held.get()), FileLock::kHeld);
  dir.write(".lock", by_another_host());
  EXPECT_THAT(refusal(dir, "b"),
              AllOf(HasSubstr("process 1 on host elsewhere is at work there"),
                    HasSubstr("where that host is gone and its lock has stayed, as on NFSv3, "
                              "remove " +
                              (dir / ".lock").string())));
  ::unlink((dir / ".lock").c_str());
  EXPECT_TRUE(RunClaim(dir.path(), of_job("b")).is_held()) << "another file has another lock";
}

constexpr int kLost = 7;

// A child that claims the folder, does `then`, and ends: with kLost where the folder is not its own
// by then.
class Claimant {
 public:
  Claimant(const TestDirectory& dir, const EnvLookup& env, int then) : child_(::fork()) {
    if (child_ == 0) {
      int status = 0;
      {
        const RunClaim claim(dir.path(), env);
        ::raise(then);
        try {
          claim.check();
        } catch (const CheckpointError&) {
          status = kLost;
        }
      }
      ::_exit(status);
    }
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED | WEXITED | WNOWAIT), 0);
  }
  Claimant(const Claimant&) = delete;
  Claimant& operator=(const Claimant&) = delete;
  ~Claimant() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  pid_t pid() const { return child_; }

 private:
  pid_t child_;
};

// The others have gone on without it: whoever is their rank 0 now has the folder.
TEST(RunClaim, AStoppedProcessOfTheSameJobHasLostItsClaim) {
  const TestDirectory dir;
  const Claimant stopped(dir, of_job("a"), SIGSTOP);
  EXPECT_THAT(refusal(dir, "b"), HasSubstr("process " + std::to_string(stopped.pid())));
  {
    const RunClaim now(dir.path(), of_job("a"));
    EXPECT_TRUE(now.is_held());
    ::kill(stopped.pid(), SIGCONT);  // it goes on, and ends
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(stopped.pid()), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(info.si_status, kLost) << "it does not write";
    now.check();
    EXPECT_THAT(dir.names(), ElementsAre(".lock")) << "which is no longer its to remove";
    EXPECT_THAT(refusal(dir, "b"), HasSubstr("process " + std::to_string(::getpid())));
  }
  EXPECT_THAT(dir.names(), IsEmpty());
}

// A scheduler's job may be a shell: Ctrl-Z, and the same command again. The first is to go on some
// time.
TEST(RunClaim, AStoppedProcessOfTheSameShellKeepsItsClaim) {
  const TestDirectory dir;
  const EnvLookup shell = [](std::string_view name) {
    return name == "SLURM_JOB_ID" ? std::optional<std::string>("a") : std::nullopt;
  };
  const Claimant stopped(dir, shell, SIGSTOP);
  for (const EnvLookup& other : {shell, of_job("a")})
    EXPECT_THAT(refusal(dir, other), HasSubstr("process " + std::to_string(stopped.pid()) +
                                               " has it and stands still; let it go on or end it"));
  ::kill(stopped.pid(), SIGCONT);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(stopped.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(info.si_status, 0) << "it is still its own";
  EXPECT_THAT(dir.names(), IsEmpty());
}

TEST(RunClaim, WhereThereAreNoLocksItGoesOnUnlessThisHostHasAnother) {
  const TestDirectory dir;
  const bool ran = testing::with_refused({{SYS_flock, ENOLCK}}, [&] {
    {
      const RunClaim first(dir.path(), of_job("a"));
      EXPECT_FALSE(first.is_held());
      EXPECT_THAT(refusal(dir, "b"), HasSubstr("in use"));
      EXPECT_THAT(dir.names(), ElementsAre(".lock"));
    }
    EXPECT_THAT(dir.names(), IsEmpty());
    {
      const Claimant killed(dir, of_job("a"), SIGKILL);
    }
    EXPECT_THAT(dir.names(), ElementsAre(".lock"));
    EXPECT_FALSE(RunClaim(dir.path(), of_job("b")).is_held());
    EXPECT_THAT(dir.names(), IsEmpty());
    // Whether another host's lives is not known: its file stays.
    dir.write(".lock", by_another_host());
    EXPECT_FALSE(RunClaim(dir.path(), of_job("b")).is_held());
    EXPECT_EQ(dir.read(".lock"), by_another_host());
    std::filesystem::remove(dir / ".lock");
  });
  if (!ran) GTEST_SKIP() << "this process may not refuse itself system calls (seccomp)";
}

// As NFS answers for another user's file, which can only be read.
TEST(RunClaim, AFileWhoseLockCannotBeAskedForIsNotRemoved) {
  const TestDirectory dir;
  dir.write(".lock", by_another_host());
  const bool ran = testing::with_refused(
      {{SYS_flock, EBADF}}, [&] { EXPECT_FALSE(RunClaim(dir.path(), of_job("a")).is_held()); });
  if (!ran) GTEST_SKIP() << "this process may not refuse itself system calls (seccomp)";
  EXPECT_EQ(dir.read(".lock"), by_another_host());
}

TEST(RunClaim, WhatAKilledTrialLeftIsRemoved) {
  const TestDirectory dir;
  for (const char* name : {"checkpoint-trial-0a", "checkpoint-trial-0b.partial"})
    std::filesystem::create_directory(dir / name);
  EXPECT_TRUE(RunClaim(dir.path(), of_job("a")).is_held());
  EXPECT_THAT(dir.names(), IsEmpty());
}

TEST(RunClaim, WhatTheFileSystemLacksIsKnownBeforeTheFirstStep) {
  const TestDirectory dir;
  const bool ran = testing::with_refused(testing::refused_renames(EROFS), [&] {
    EXPECT_THAT(refusal(dir, "a"), AllOf(HasSubstr("cannot keep checkpoints"), HasSubstr("give")));
  });
  if (!ran) GTEST_SKIP() << "this process may not refuse itself system calls (seccomp)";
  EXPECT_THAT(dir.names(), IsEmpty());
}

}  // namespace lockstep::inline v0::run_claim_test
