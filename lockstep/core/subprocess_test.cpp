#include "lockstep/core/subprocess.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace subprocess_test {

using testing::AllOf;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::seconds(20);
}

SubprocessOptions shell(const std::string& script) {
  SubprocessOptions options;
  options.command = {"/bin/sh", "-c", script};
  return options;
}

// Returns the child's output on stdout.
std::string output_of(SubprocessOptions options) {
  Pipe pipe = make_pipe();
  options.stdout_fd = pipe.write.get();
  Subprocess process(options);
  pipe.write.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  process.wait(soon());
  return text;
}

std::string error_of(const SubprocessOptions& options) {
  try {
    Subprocess process(options);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "no error";
}

// As after exec, except that memory is a copy.
TEST(Subprocess, ABodyRunsInAFork) {
  const Pipe kept = make_pipe(), closed = make_pipe();
  std::string value = "the parent's";
  SubprocessOptions options;
  options.command = {"a body"};
  options.env = {"ANSWER=42"};
  options.inherit = {kept.write.get()};
  options.body = [&] {
    value = "the child's";
    const char* const answer = std::getenv("ANSWER");
    const bool environment =
        answer != nullptr && answer == std::string("42") && std::getenv("PATH") == nullptr;
    const bool descriptors =
        ::fcntl(kept.write.get(), F_GETFD) == 0 && ::fcntl(closed.write.get(), F_GETFD) < 0;
    std::printf("%s environment and descriptors", environment && descriptors ? "right" : "wrong");
    return 7;
  };
  EXPECT_EQ(output_of(options), "right environment and descriptors");
  EXPECT_EQ(Subprocess(options).wait(soon()).exit_code, 7);
  EXPECT_EQ(value, "the parent's");
}

// An error of the caller, who named the program, is distinguished from a temporary one.
TEST(Subprocess, WhatMayPassIsNoMistake) {
  const TestDirectory folder;
  const std::string busy = folder.write("program", "#!/bin/sh\nexit 0\n");
  std::filesystem::permissions(busy, std::filesystem::perms::owner_all);
  const UniqueFd writer(::open(busy.c_str(), O_WRONLY | O_CLOEXEC));
  SubprocessOptions options;
  options.command = {busy};
  try {
    Subprocess process(options);
    FAIL() << "it was started";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.errnum(), ETXTBSY);
    EXPECT_NE(std::string(error.what()).find("cannot start '" + busy + "'"), std::string::npos);
  }
}

TEST(Subprocess, ExitCodesAndSignals) {
  Subprocess exits(shell("exit 7"));
  const ExitStatus status = exits.wait(soon());
  EXPECT_EQ(status.exit_code, 7);
  EXPECT_EQ(status.signal, 0);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(exits.poll()->exit_code, 7) << "remembered";
  Subprocess dies(shell("kill -9 $$"));
  EXPECT_EQ(dies.wait(soon()).signal, SIGKILL);
  EXPECT_TRUE(Subprocess(shell(":")).wait(soon()).ok());
}

TEST(Subprocess, WaitingEndsAtTheDeadline) {
  Subprocess process(shell("sleep 30"));
  EXPECT_EQ(process.poll(), std::nullopt);
  EXPECT_THROW(process.wait(Deadline::seconds(0.02)), Timeout);
}

TEST(Subprocess, WhatCannotBeExecutedIsAnExceptionWithTheReason) {
  SubprocessOptions options;
  EXPECT_THAT(error_of(options), HasSubstr("no program"));
  options.command = {"no-such-program-anywhere"};
  EXPECT_THAT(error_of(options), HasSubstr("not found on PATH"));
  options.command = {"/no/such/file"};
  EXPECT_THAT(error_of(options), HasSubstr("No such file or directory"));
  options.program = "/etc/passwd";
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("/etc/passwd"), HasSubstr("Permission denied")));
  std::string name = std::filesystem::temp_directory_path() / "lockstep-exec-XXXXXX";
  {
    const UniqueFd file(::mkstemp(name.data()));
    ASSERT_EQ(::write(file.get(), "#!/no/interpreter\n", 18), 18);
    ::fchmod(file.get(), 0700);
  }
  options.program.clear();
  options.command = {name};
  EXPECT_THAT(error_of(options), HasSubstr("interpreter"));
  {
    std::ofstream file(name);
    file << "no program at all";
  }
  EXPECT_THAT(error_of(options), HasSubstr("#! line"));
  std::filesystem::remove(name);
}

TEST(Subprocess, EnvironmentAndArgumentsAreAsGiven) {
  SubprocessOptions options;
  options.command = {"sh", "-c", "echo \"$A,$HOME,$0,$1\"", "zero", "a b"};
  options.env = {{"A=one two", "PATH=/usr/bin:/bin"}};
  EXPECT_EQ(output_of(options), "one two,,zero,a b\n");
}

TEST(Subprocess, OnlyChosenDescriptorsAreInherited) {
  const UniqueFd chosen(::memfd_create("chosen", MFD_CLOEXEC)),
      other(::memfd_create("other", MFD_CLOEXEC));
  SubprocessOptions options =
      shell("for fd in " + std::to_string(chosen.get()) + " " + std::to_string(other.get()) +
            "; do [ -e /proc/self/fd/$fd ] && echo yes || echo no; done");
  options.inherit = {chosen.get()};
  EXPECT_EQ(output_of(options), "yes\nno\n");
}

TEST(Subprocess, AnySetOfStandardDescriptorsWorks) {
  Pipe in = make_pipe(), err = make_pipe();
  ASSERT_EQ(::write(in.write.get(), "input\n", 6), 6);
  in.write.reset();
  SubprocessOptions options = shell("cat; echo error >&2");
  options.stdin_fd = in.read.get();
  options.stderr_fd = err.write.get();
  EXPECT_EQ(output_of(options), "input\n");
  char buffer[16] = {};
  EXPECT_EQ(::read(err.read.get(), buffer, sizeof buffer), 6);
}

TEST(Subprocess, StdoutMayBeTheParentsStderr) {
  SubprocessOptions options = shell("exit 0");
  options.stdout_fd = STDERR_FILENO;
  options.stderr_fd = STDOUT_FILENO;
  EXPECT_TRUE(Subprocess(options).wait(soon()).ok());
}

TEST(Subprocess, ProcessorsAreThoseGiven) {
  const auto cpus = allowed_cpus();
  SubprocessOptions options = shell("nproc");
  options.env = {{"PATH=/usr/bin:/bin"}};
  options.cpus = {cpus.back()};
  EXPECT_EQ(output_of(options), "1\n");
}

TEST(Subprocess, SignalsAreDefaultAndUnblocked) {
  sigset_t set, before;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  struct sigaction action{}, former{};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, &former);
  Subprocess process(shell("kill -USR1 $$; sleep 30"));
  ::sigaction(SIGUSR1, &former, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(process.wait(soon()).signal, SIGUSR1);
}

TEST(Subprocess, TheDestructorKillsTheWholeGroup) {
  Pipe pipe = make_pipe();
  {
    SubprocessOptions options = shell("sleep 60 & sleep 60 & wait");
    options.stdout_fd = pipe.write.get();
    Subprocess process(options);
    pipe.write.reset();
    EXPECT_TRUE(process.group_alive());
  }
  char byte;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0) << "nobody holds the pipe any more";
}

// Whether a process, a group or a session still has the number.
bool is_taken(pid_t number) {
  return ::kill(number, 0) == 0 || ::kill(-number, 0) == 0;
}

TEST(Subprocess, ItsNumbersAreItsOwnWhileItMaySignalThem) {
  const SubprocessOptions options = shell("exit 7");
  std::optional<Subprocess> process;
  process.emplace(options);
  const pid_t number = process->pid();
  EXPECT_EQ(process->wait(soon()).exit_code, 7);
  EXPECT_TRUE(is_taken(number)) << "no stranger can get it, so this is for nobody:";
  process->signal_group(SIGKILL);
  process->signal(SIGKILL);
  EXPECT_EQ(process->poll()->exit_code, 7);
  EXPECT_FALSE(process->group_alive());
  EXPECT_FALSE(is_taken(number));
  process->signal_group(SIGKILL);
  EXPECT_FALSE(process->group_alive());

  process.emplace(options);
  const pid_t another = process->pid();
  EXPECT_EQ(process->wait(soon()).exit_code, 7);
  EXPECT_TRUE(is_taken(another));
  process.reset();
  EXPECT_FALSE(is_taken(another)) << "the destructor leaves no zombie";
}

TEST(Subprocess, TheGroupIsReachedAfterItsLeadersEnd) {
  Pipe pipe = make_pipe();
  SubprocessOptions options = shell("sleep 60 & exit 5");
  options.stdout_fd = pipe.write.get();
  Subprocess process(options);
  pipe.write.reset();
  EXPECT_EQ(process.wait(soon()).exit_code, 5);
  EXPECT_TRUE(process.group_alive());
  EXPECT_TRUE(process.group_alive()) << "to ask changes nothing";
  process.signal_group(SIGKILL);
  char byte;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0) << "nobody holds the pipe any more";
  const Deadline deadline = soon();
  while (process.group_alive() && !deadline.expired()) std::this_thread::yield();
  EXPECT_FALSE(process.group_alive());
}

TEST(Subprocess, DiesWithTheThreadThatStartedIt) {
  std::optional<Subprocess> process;
  std::thread([&] { process.emplace(shell("exec sleep 60")); }).join();
  EXPECT_EQ(process->wait(soon()).signal, SIGKILL);
  std::optional<Subprocess> independent;
  std::thread([&] {
    SubprocessOptions options = shell("sleep 0.1; exit 3");
    options.die_with_parent = false;
    independent.emplace(options);
  }).join();
  EXPECT_EQ(independent->wait(soon()).exit_code, 3);
}

TEST(Subprocess, ManyAtOnceFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        if (output_of(shell("echo hello")) == "hello\n") ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 40);
}

TEST(FindProgram, SearchesThePath) {
  EXPECT_THAT(find_program("sh"), testing::EndsWith("/sh"));
  EXPECT_EQ(find_program("/bin/sh"), "/bin/sh");
  EXPECT_THROW(find_program(""), LaunchError);
  EXPECT_THROW(find_program("/tmp"), LaunchError);
  EXPECT_THROW(find_program("/etc/passwd"), LaunchError);
}

}  // namespace subprocess_test
}  // namespace lockstep::inline v0
