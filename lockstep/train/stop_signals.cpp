#include "lockstep/train/stop_signals.h"

#include <signal.h>

#include <array>
#include <atomic>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {
namespace {

constexpr std::array kStopSignals{SIGTERM, SIGUSR1};

// What the handler writes. kNobody: no thread listens.
constexpr int kNobody = -1;
std::atomic<int> g_signal{kNobody};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may not wait");

// Who listens. A process has one set of handlers.
struct Listeners {
  Mutex mutex;
  int count LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::array<bool, kStopSignals.size()> taken LOCKSTEP_GUARDED_BY(mutex){};
};

Listeners& listeners() {
  static Listeners all;
  return all;
}

extern "C" void remember_stop_signal(int signal) {
  StopSignals::note(signal);
}

bool has_handler(int signal, void (*handler)(int)) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == handler;
}

bool install(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(signal, &action, nullptr) == 0;
}

}  // namespace

StopSignals::StopSignals() {
  Listeners& all = listeners();
  const MutexLock lock(all.mutex);
  if (all.count++ > 0) return;
  g_signal.store(0);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    all.taken[i] =
        has_handler(kStopSignals[i], SIG_DFL) && install(kStopSignals[i], remember_stop_signal);
  }
}

StopSignals::~StopSignals() {
  Listeners& all = listeners();
  const MutexLock lock(all.mutex);
  if (--all.count > 0) return;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    // A handler that was put in its place since stays.
    if (all.taken[i] && has_handler(kStopSignals[i], remember_stop_signal))
      install(kStopSignals[i], SIG_DFL);
  }
  g_signal.store(kNobody);
}

int StopSignals::received() noexcept {
  const int signal = g_signal.load();
  return signal == kNobody ? 0 : signal;
}

bool StopSignals::note(int signal) noexcept {
  int none = 0;
  return g_signal.compare_exchange_strong(none, signal) || none != kNobody;
}

}  // namespace lockstep::inline v0
