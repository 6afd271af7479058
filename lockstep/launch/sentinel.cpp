#include "lockstep/launch/sentinel.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <new>

#include "lockstep/core/errors.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::launch {

// Lies in memory that the two processes share, followed by the groups.
struct Sentinel::Watched {
  Watched(size_t places, clockid_t its_clock) : count(places), clock(its_clock) {}

  static constexpr int64_t kFree = 0, kLapsed = -1;

  std::atomic<int64_t> held_until = kFree;  // or a point in time
  const size_t count;
  const clockid_t clock;

  std::atomic<pid_t>& group(size_t place) {
    return reinterpret_cast<std::atomic<pid_t>*>(this + 1)[place];
  }
  void kill_all() {
    for (size_t i = 0; i < count; ++i) {
      if (const pid_t id = group(i).load(); id > 1) ::kill(-id, SIGKILL);
    }
  }
  static size_t bytes(size_t places) {
    return sizeof(Watched) + places * sizeof(std::atomic<pid_t>);
  }
};

namespace {

using Watched = Sentinel::Watched;

constexpr char kDismissed = 0, kHeld = 1;  // the agent's messages to its sentinel

int64_t now_ns(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Returns how long the sentinel may sleep, in milliseconds; -1: until the agent wakes it. Kills the
// groups whose time has come.
int look_at_time(Watched& watched) {
  int64_t until = watched.held_until.load();
  const int64_t now = now_ns(watched.clock);
  if (until == Watched::kFree || until == Watched::kLapsed) return -1;
  if (now < until) return static_cast<int>(std::min<int64_t>((until - now) / 1'000'000 + 1, 1000));
  if (watched.held_until.compare_exchange_strong(until, Watched::kLapsed)) watched.kill_all();
  return 0;
}

// Runs in the child, with all signals blocked. Only async-signal-safe calls.
[[noreturn]] void stand_guard(int lifeline, Watched& watched) {
  ::setsid();
  // Closes everything except the lifeline, because pipes that the agent uses must not stay open
  // here.
  constexpr int kFirst = 0;
  const int moved = ::dup2(lifeline, kFirst);
  if (::syscall(SYS_close_range, 1U, UINT_MAX, 0U) != 0) {
    for (int fd = 1; fd < 65536; ++fd) ::close(fd);
  }
  while (true) {
    pollfd waiting{moved, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, look_at_time(watched));
    if (ready <= 0) continue;
    char word = kHeld;
    const ssize_t n = ::read(moved, &word, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) watched.kill_all();
    if (n <= 0 || word == kDismissed) ::_exit(0);
  }
}

}  // namespace

Sentinel::Sentinel(int places, bool sleep_counts) {
  const auto count = static_cast<size_t>(std::max(1, places));
  void* memory = ::mmap(nullptr, Watched::bytes(count), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error("mmap for the sentinel", errno);
  watched_ = new (memory) Watched(count, sleep_counts ? CLOCK_BOOTTIME : CLOCK_MONOTONIC);
  for (size_t i = 0; i < count; ++i) new (&watched_->group(i)) std::atomic<pid_t>(0);
  Pipe pipe = make_pipe();
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  child_ = ::fork();
  if (child_ == 0) stand_guard(pipe.read.get(), *watched_);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child_ < 0) {
    ::munmap(memory, Watched::bytes(count));
    throw system_error("fork of the sentinel", error);
  }
  lifeline_ = std::move(pipe.write);
}

Sentinel::~Sentinel() {
  // A byte instead of an end-of-file says that the sentinel is no longer needed.
  while (::write(lifeline_.get(), &kDismissed, 1) < 0 && errno == EINTR) {
  }
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::munmap(watched_, Watched::bytes(watched_->count));
}

void Sentinel::watch(int place, pid_t group) noexcept {
  watched_->group(static_cast<size_t>(place)).store(group);
}

void Sentinel::forget(int place) noexcept {
  watched_->group(static_cast<size_t>(place)).store(0);
}

bool Sentinel::hold_until(std::optional<std::chrono::steady_clock::time_point> time) noexcept {
  using std::chrono::nanoseconds;
  using std::chrono::steady_clock;
  const int64_t now = now_ns(watched_->clock);
  int64_t until = watched_->held_until.load();
  if (until == Watched::kLapsed) return false;
  // Both processes may wake at the same moment.
  const bool late = until != Watched::kFree && now >= until;
  const int64_t next =
      late    ? Watched::kLapsed
      : !time ? Watched::kFree
              : now + std::chrono::duration_cast<nanoseconds>(*time - steady_clock::now()).count();
  // The agent was not being waited for: a moment that passed before it had ranks ends none, and its
  // next message counts.
  if (until == Watched::kFree && time && next <= now) return true;
  if (!watched_->held_until.compare_exchange_strong(until, next)) return false;
  if (late) watched_->kill_all();
  if (until == Watched::kFree && time) {
    while (::write(lifeline_.get(), &kHeld, 1) < 0 && errno == EINTR) {
    }
  }
  return !late;
}

}  // namespace lockstep::inline v0::launch
