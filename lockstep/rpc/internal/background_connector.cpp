#include "lockstep/rpc/internal/background_connector.h"

#include <signal.h>

#include <algorithm>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // before the same process's next turn

std::exception_ptr agent_has_stopped() {
  return std::make_exception_ptr(
      Cancelled("this agent was stopped before it had reached another process"));
}

}  // namespace

struct BackgroundConnector::State : std::enable_shared_from_this<BackgroundConnector::State> {
  struct Waiting {
    Deadline deadline;
    Then then;
  };
  struct Sought {
    Peer peer;
    std::vector<Waiting> waiting;
    Deadline::Clock::time_point turn;  // the earliest time
  };

  explicit State(Connect given) : connect(std::move(given)) {}

  void live();
  void take_turn(Sought& sought);
  void take_in(const Peer& peer, Deadline deadline, const Then& then);

  const Connect connect;
  Mutex mutex;
  ConditionVariable changed;
  std::list<Sought> queue LOCKSTEP_GUARDED_BY(mutex);
  bool stopping LOCKSTEP_GUARDED_BY(mutex) = false;
  bool ended LOCKSTEP_GUARDED_BY(mutex) = false;
  std::thread thread LOCKSTEP_GUARDED_BY(mutex);
};

void BackgroundConnector::State::live() {
  MutexLock lock(mutex);
  while (!stopping) {
    if (queue.empty()) {
      changed.wait(lock);
      continue;
    }
    if (const auto turn = queue.front().turn; turn > Deadline::Clock::now()) {
      changed.wait_until(lock, turn);
      continue;
    }
    std::list<Sought> one;
    one.splice(one.begin(), queue, queue.begin());
    lock.unlock();
    take_turn(one.front());
    if (one.front().waiting.empty()) one.clear();
    lock.lock();
    if (one.empty()) continue;
    one.front().turn = Deadline::Clock::now() + kPause;
    queue.splice(queue.end(), one);
  }
  std::list<Sought> dropped;
  dropped.swap(queue);
  lock.unlock();
  for (const Sought& sought : dropped)
    for (const Waiting& one : sought.waiting) one.then(agent_has_stopped());
  dropped.clear();  // their captures are destroyed outside the lock
  lock.lock();
  ended = true;
  changed.notify_all();
}

// Notifies the calls whose wait has ended, and leaves the others.
void BackgroundConnector::State::take_turn(Sought& sought) {
  Deadline::Duration most{};
  for (const Waiting& one : sought.waiting) most = std::max(most, one.deadline.remaining());
  std::exception_ptr error;
  bool again = false;
  try {
    connect(sought.peer, Deadline::after(std::min<Deadline::Duration>(most, kTurn)));
  } catch (const Timeout&) {
    error = std::current_exception();
    again = true;
  } catch (...) {
    error = std::current_exception();
  }
  std::vector<Waiting> over;
  const auto ends =
      std::partition(sought.waiting.begin(), sought.waiting.end(),
                     [again](const Waiting& one) { return again && !one.deadline.expired(); });
  std::move(ends, sought.waiting.end(), std::back_inserter(over));
  sought.waiting.erase(ends, sought.waiting.end());
  for (const Waiting& one : over) one.then(error);
}

BackgroundConnector::BackgroundConnector(Connect connect)
    : state_(std::make_shared<State>(std::move(connect))) {}

BackgroundConnector::~BackgroundConnector() {
  stop(Deadline::Clock::now() + std::chrono::seconds(10));
}

void BackgroundConnector::reach(const Peer& peer, Deadline deadline, const Then& then) {
  try {
    state_->take_in(peer, deadline, then);
  } catch (...) {
    then(std::current_exception());
  }
}

// Throws the caller's error where there is no thread for it.
void BackgroundConnector::State::take_in(const Peer& peer, Deadline deadline, const Then& then) {
  MutexLock lock(mutex);
  if (stopping) std::rethrow_exception(agent_has_stopped());
  const auto found = std::find_if(queue.begin(), queue.end(), [&](const Sought& one) {
    return one.peer.incarnation == peer.incarnation;
  });
  if (found != queue.end()) {
    found->waiting.push_back({deadline, then});
    return;
  }
  queue.push_back({peer, {{deadline, then}}, {}});
  if (!thread.joinable()) {
    // Signals are left to the program's own threads.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread = std::thread([state = shared_from_this()] { state->live(); });
    } catch (...) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      queue.pop_back();
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed.notify_all();
}

void BackgroundConnector::stop(Deadline::Clock::time_point deadline) noexcept {
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  if (!state_->thread.joinable()) return;
  const bool own = state_->thread.get_id() == std::this_thread::get_id();
  while (!own && !state_->ended)
    if (!state_->changed.wait_until(lock, deadline)) break;
  std::thread thread = std::move(state_->thread);
  const bool ended = state_->ended;
  lock.unlock();
  if (ended) return thread.join();
  thread.detach();
  if (!own)
    log_warning("rpc: a thread that connects to another process does not end; it is left behind");
}

}  // namespace lockstep::inline v0::rpc::internal
