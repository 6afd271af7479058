#include "lockstep/train/run_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/refused_calls.h"

namespace lockstep::run_claim_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EnvLookup of_job(const std::string& id) {
  return [id](std::string_view name) {
    return name == "TORCHELASTIC_RUN_ID" && !id.empty() ? std::optional(id) : std::nullopt;
  };
}

std::string refusal(const TestDirectory& dir, const std::string& job) {
  return message_of<InvalidArgument>([&] { RunClaim claim(dir.path(), of_job(job)); });
}

TEST(RunClaim, AnotherJobIsRefusedUntilTheFirstIsDone) {
  const TestDirectory dir;
  {
    const RunClaim first(dir.path(), of_job("a"));
    EXPECT_TRUE(first.is_held());
    for (const char* job : {"", "b"})
      EXPECT_THAT(refusal(dir, job),
                  AllOf(HasSubstr(dir.path().string()), HasSubstr("in use"),
                        HasSubstr("process " + std::to_string(::getpid()) + " is training there")));
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

TEST(RunClaim, WhereThereAreNoLocksItGoesOn) {
  const TestDirectory dir;
  const bool ran = testing::with_refused({{SYS_flock, ENOLCK}}, [&] {
    const RunClaim first(dir.path(), of_job("a")), second(dir.path(), of_job("b"));
    EXPECT_FALSE(first.is_held());
    EXPECT_FALSE(second.is_held());
  });
  if (!ran) GTEST_SKIP() << "this process may not refuse itself system calls (seccomp)";
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

}  // namespace lockstep::run_claim_test
