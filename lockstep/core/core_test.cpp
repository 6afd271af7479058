// env, deadline, errors, check, log, cpus.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/log.h"
#include "lockstep/core/log_never_waits.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {
namespace core_test {

using testing::AllOf;
using testing::HasSubstr;

EnvLookup lookup(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

TEST(Env, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_EQ(parse_int("-9223372036854775808"), INT64_MIN);
  for (const char* wrong :
       {"42x", "", " 1", "1 ", "+1", "0x10", "1.0", "9223372036854775808", "--1"}) {
    EXPECT_EQ(parse_int(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(parse_int("7", 0, 5), std::nullopt);
  EXPECT_EQ(parse_int("5", 0, 5), 5);
}

TEST(Env, ParsesWholeDecimalsOnly) {
  EXPECT_EQ(parse_double("0.5"), 0.5);
  EXPECT_EQ(parse_double("-1e3"), -1000);
  for (const char* wrong : {"", "0,5", "1.0x", "nan", "inf", "1e999", " 1"})
    EXPECT_EQ(parse_double(wrong), std::nullopt) << wrong;
}

TEST(Env, IntegersNameTheVariableItsValueAndTheRange) {
  const EnvLookup env = lookup({{"N", "12"}, {"WORD", "twelve"}});
  EXPECT_EQ(env_int(env, "N", 0, 20), 12);
  EXPECT_EQ(env_int(env, "ABSENT"), std::nullopt);
  EXPECT_THAT(message_of<Error>([&] { env_int(env, "WORD", 0, 20); }),
              AllOf(HasSubstr("WORD=twelve"), HasSubstr("from 0 to 20")));
  EXPECT_THAT(message_of<Error>([&] { env_int(env, "N", 13); }),
              AllOf(HasSubstr("N=12"), HasSubstr("at least 13")));
}

TEST(Env, Switches) {
  for (const char* yes : {"1", "true", "yes", "on", "ON"})
    EXPECT_TRUE(env_flag(lookup({{"F", yes}}), "F", false)) << yes;
  for (const char* no : {"0", "false", "no", "off", "OFF"})
    EXPECT_FALSE(env_flag(lookup({{"F", no}}), "F", true)) << no;
  EXPECT_TRUE(env_flag(lookup({}), "F", true));
  EXPECT_THAT(message_of<Error>([] { env_flag(lookup({{"F", "maybe"}}), "F", true); }),
              HasSubstr("F=maybe"));
}

TEST(Env, AnEmptyVariableCountsAsUnset) {
  ::setenv("LOCKSTEP_CORE_TEST", "", 1);
  EXPECT_EQ(process_env()("LOCKSTEP_CORE_TEST"), std::nullopt);
  ::setenv("LOCKSTEP_CORE_TEST", "x", 1);
  EXPECT_EQ(process_env()("LOCKSTEP_CORE_TEST"), "x");
  ::unsetenv("LOCKSTEP_CORE_TEST");
}

TEST(Deadline, CountsDownToZeroAndStaysThere) {
  const Deadline now = Deadline::seconds(0);
  EXPECT_TRUE(now.expired());
  EXPECT_EQ(now.remaining(), Deadline::Duration::zero());
  EXPECT_EQ(now.poll_ms(), 0);
  const Deadline past = Deadline::seconds(-5);
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.timeout_seconds(), 0);
  const Deadline later = Deadline::seconds(60);
  EXPECT_FALSE(later.expired());
  EXPECT_GT(later.remaining(), std::chrono::seconds(50));
  EXPECT_LE(later.remaining(), std::chrono::seconds(60));
  EXPECT_EQ(later.timeout_seconds(), 60);
}

TEST(Deadline, PollIsRoundedUpAndCapped) {
  EXPECT_GE(Deadline::after(std::chrono::microseconds(900000)).poll_ms(), 890);
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds(1) + std::chrono::hours(1)).poll_ms(250), 250);
  EXPECT_EQ(Deadline::after(std::chrono::hours(24 * 365)).poll_ms(),
            std::numeric_limits<int>::max());
}

TEST(Deadline, TheLongestOneDoesNotOverflow) {
  const Deadline forever = Deadline::after(Deadline::Duration::max());
  EXPECT_FALSE(forever.expired());
  EXPECT_EQ(forever.time(), Deadline::Clock::time_point::max());
  EXPECT_FALSE(Deadline::seconds(1e30).expired()) << "clamped";
}

TEST(Errors, SystemErrorsHaveTheReason) {
  const SystemError error = system_error("open /x", ENOENT);
  EXPECT_STREQ(error.what(), "open /x: No such file or directory");
  EXPECT_EQ(error.errnum(), ENOENT);
}

TEST(Check, NamesTheConditionAndThePlace) {
  EXPECT_NO_THROW(LOCKSTEP_CHECK(1 + 1 == 2, "arithmetic holds"));
  EXPECT_THAT(
      message_of<Error>([] { LOCKSTEP_CHECK(1 + 1 == 3, "arithmetic holds"); }),
      AllOf(HasSubstr("core_test.cpp:"), HasSubstr("1 + 1 == 3"), HasSubstr("arithmetic holds")));
}

TEST(Cpus, AreAtLeastOneAndAtMostTheAllowed) {
  const auto allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_TRUE(std::is_sorted(allowed.begin(), allowed.end()));
  EXPECT_GE(usable_cpu_count(), 1);
  EXPECT_LE(usable_cpu_count(), static_cast<int>(allowed.size()));
}

TEST(Log, WritesWholeLinesWithTheRank) {
  ::setenv("RANK", "3", 1);
  testing::internal::CaptureStderr();
  log_warning("careful");
  log_debug("not shown");
  ::setenv("LOCKSTEP_LOG", "debug", 1);
  log_debug("shown");
  ::unsetenv("RANK");
  ::setenv("LOCKSTEP_LOG", "error", 1);
  log_warning("not shown");
  log_error("bad");
  ::unsetenv("LOCKSTEP_LOG");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[lockstep] rank 3: warning: careful\n[lockstep] rank 3: debug: shown\n[lockstep] "
            "error: bad\n");
}

// The reader of stderr may be blocked.
TEST(Log, WaitsForNoReaderWhereItMustNot) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]), before(::dup(STDERR_FILENO));
  while (::write(writer.get(), "x", 1) == 1) {
  }
  ASSERT_EQ(::fcntl(writer.get(), F_SETFL, 0), 0) << "it blocks from now on";
  ASSERT_GE(::dup2(writer.get(), STDERR_FILENO), 0);
  std::string last;
  {
    const LogNeverWaits here;
    log_warning("lost");
    log_warning("lost, too");
    char bytes[1 << 16];
    while (::read(reader.get(), bytes, sizeof bytes) > 0) {
    }
    log_warning("heard");
    log_warning(std::string(1 << 20, 'y'));
    const ssize_t n = ::read(reader.get(), bytes, sizeof bytes);
    if (n > 0) last.assign(bytes, static_cast<size_t>(n));
  }
  ::dup2(before.get(), STDERR_FILENO);
  EXPECT_THAT(last,
              testing::StartsWith("[lockstep] warning: 2 lines of the log had no room, and are "
                                  "lost\n[lockstep] warning: heard\n[lockstep] warning: yyy"));
  EXPECT_LT(last.size(), 8192U);
  EXPECT_EQ(last.back(), '\n');
}

// Several threads see the room for one write, and only one of them uses it.
TEST(Log, WritersOfOnePipeDoNotFillEachOthersRoom) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const std::string piece(4096, 'x');
  std::atomic<size_t> written = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      ssize_t n = 0;
      while ((n = write_if_room(writer.get(), piece)) > 0) written += static_cast<size_t>(n);
      EXPECT_EQ(errno, EAGAIN);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(written.load(), static_cast<size_t>(::fcntl(writer.get(), F_GETPIPE_SZ)));
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC)), nobody;
  EXPECT_EQ(write_if_room(file.get(), std::string(1 << 20, 'x')), 1 << 20);
  EXPECT_EQ(write_if_room(nobody.get(), piece), -1);
}

TEST(Joined, ItemsStandBetweenSeparators) {
  EXPECT_EQ(joined(std::vector<int>{}), "");
  EXPECT_EQ(joined(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(joined(std::vector<int>{0, 2, 3}), "0, 2, 3");
  EXPECT_EQ(joined(std::vector<std::string>{"", "b"}, "; "), "; b");
}

TEST(NearestName, IsFoundAcrossTyposAndNotInvented) {
  EXPECT_EQ(edit_distance("batch", "bacth"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  const std::vector<std::string> names = {"lr", "betas", "train_batch_size",
                                          "train_micro_batch_size_per_gpu"};
  EXPECT_EQ(nearest_name("beta", names), "betas");
  EXPECT_EQ(nearest_name("train_micro_batch_size", names), "train_micro_batch_size_per_gpu");
  EXPECT_EQ(nearest_name("x", names), "");
  EXPECT_EQ(nearest_name("momentum", names), "");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'a'), names), "");
}

TEST(ExceptionText, IsNeverEmpty) {
  const auto of = [](const auto& thrown) {
    return exception_text(std::make_exception_ptr(thrown));
  };
  EXPECT_EQ(of(InvalidArgument("no such rank")), "no such rank");
  EXPECT_EQ(of(std::runtime_error("")), "an exception without a message");
  EXPECT_EQ(of(7), "an unknown exception");
  EXPECT_EQ(exception_text(nullptr), "");
}

}  // namespace core_test
}  // namespace lockstep::inline v0
