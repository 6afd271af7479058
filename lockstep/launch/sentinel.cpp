#include "lockstep/launch/sentinel.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::launch {
namespace {

// In the child, with all signals blocked. Async-signal-safe calls only.
[[noreturn]] void stand_guard(int lifeline, const pid_t* groups, size_t count) {
  ::setsid();
  // Everything but the lifeline: a pipe that the agent reads or writes must not stay open here.
  constexpr int kFirst = 0;
  const int moved = ::dup2(lifeline, kFirst);
  if (::syscall(SYS_close_range, 1U, UINT_MAX, 0U) != 0) {
    for (int fd = 1; fd < 65536; ++fd) ::close(fd);
  }
  char byte;
  ssize_t n = 0;
  do {
    n = ::read(moved, &byte, 1);
  } while (n < 0 && errno == EINTR);
  if (n == 0) {
    for (size_t i = 0; i < count; ++i) {
      const pid_t group = std::atomic_ref(const_cast<pid_t&>(groups[i])).load();
      if (group > 1) ::kill(-group, SIGKILL);
    }
  }
  ::_exit(0);
}

}  // namespace

Sentinel::Sentinel(int places) : count_(static_cast<size_t>(std::max(1, places))) {
  void* memory = ::mmap(nullptr, count_ * sizeof(pid_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error("mmap for the sentinel", errno);
  groups_ = static_cast<pid_t*>(memory);
  Pipe pipe = make_pipe();
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  child_ = ::fork();
  if (child_ == 0) stand_guard(pipe.read.get(), groups_, count_);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child_ < 0) {
    ::munmap(groups_, count_ * sizeof(pid_t));
    throw system_error("fork of the sentinel", error);
  }
  lifeline_ = std::move(pipe.write);
}

Sentinel::~Sentinel() {
  // A byte instead of an end: it is not needed any more.
  while (::write(lifeline_.get(), "", 1) < 0 && errno == EINTR) {
  }
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::munmap(groups_, count_ * sizeof(pid_t));
}

void Sentinel::watch(int place, pid_t group) noexcept {
  std::atomic_ref(groups_[place]).store(group);
}

void Sentinel::forget(int place) noexcept {
  std::atomic_ref(groups_[place]).store(0);
}

}  // namespace lockstep::launch
