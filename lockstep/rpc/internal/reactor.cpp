#include "lockstep/rpc/internal/reactor.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/internal/timed_slots.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr int kLeaders = 2;         // threads that wait for sockets while there are no tasks
constexpr int kEventsAtATime = 16;  // events that one leader takes
// Names in epoll's data; a watched descriptor has its number and its watch's generation, which is
// not 0.
constexpr uint64_t kWakeName = 0;
constexpr uint64_t kClockName = 1;

// A thread's own state.
struct Own {
  const void* state = nullptr;
  bool handling = false;       // a handler runs in it, as a leader
  std::vector<Task> requests;  // of its handlers
};
thread_local Own* own = nullptr;

timespec timespec_of(Reactor::Clock::time_point when) {
  const auto since = std::max(when.time_since_epoch(), Reactor::Clock::duration(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  return {static_cast<time_t>(seconds.count()),
          static_cast<long>(
              std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count())};
}

}  // namespace

struct Reactor::State {
  struct Watch {
    uint32_t age = 0;
    uint32_t events = 0;
    std::function<void(uint32_t)> ready;
    std::thread::id runner;  // the thread in ready()
    uint32_t missed = 0;     // events that arrived meanwhile
    bool forgotten = false;
  };

  State();

  // ---- a thread's life ----
  void live(Own& self);
  void lead(Own& self) LOCKSTEP_REQUIRES(mutex);
  void serve() LOCKSTEP_REQUIRES(mutex);
  void call_for_hands() LOCKSTEP_REQUIRES(mutex);
  void handle(const epoll_event& event);
  void run_timers();
  void set_clock() LOCKSTEP_REQUIRES(mutex);
  void poke() const;

  UniqueFd epoll, wake, clock;
  mutable Mutex mutex;
  ConditionVariable work;     // for threads that neither lead nor serve
  ConditionVariable handled;  // a ready() has returned
  ConditionVariable ended;
  std::deque<Task> queue LOCKSTEP_GUARDED_BY(mutex);
  TimedSlots<Task> timers LOCKSTEP_GUARDED_BY(mutex);
  Clock::time_point clock_set LOCKSTEP_GUARDED_BY(mutex) = Clock::time_point::max();
  std::unordered_map<int, std::shared_ptr<Watch>> watches LOCKSTEP_GUARDED_BY(mutex);
  uint32_t last_age LOCKSTEP_GUARDED_BY(mutex) = 0;
  int leading LOCKSTEP_GUARDED_BY(mutex) = 0;
  int idle LOCKSTEP_GUARDED_BY(mutex) = 0;
  bool called LOCKSTEP_GUARDED_BY(mutex) = false;  // an idle thread has been woken and is starting
  bool poked LOCKSTEP_GUARDED_BY(mutex) = false;   // a leader has been woken
  bool stopping LOCKSTEP_GUARDED_BY(mutex) = false;
  std::vector<std::thread> threads LOCKSTEP_GUARDED_BY(mutex);
  std::vector<std::thread::id> done LOCKSTEP_GUARDED_BY(mutex);
};

Reactor::State::State()
    : epoll(::epoll_create1(EPOLL_CLOEXEC)),
      wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      clock(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!epoll || !wake || !clock) throw system_error("rpc: no descriptors for its threads", errno);
  for (const auto& [fd, name] :
       {std::pair{wake.get(), kWakeName}, std::pair{clock.get(), kClockName}}) {
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = name}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw system_error("epoll_ctl", errno);
  }
}

// Edge triggered: every write wakes one leader, and no thread has to read it.
void Reactor::State::poke() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
}

// There is a task in the queue. The thread that takes it calls the next one, unless it is the last
// task.
void Reactor::State::call_for_hands() {
  if (queue.empty()) return;
  if (idle > 0) {
    if (called) return;
    called = true;
    work.notify_one();
  } else if (leading >= kLeaders && !poked) {
    poked = true;
    poke();
  }
}

void Reactor::State::live(Own& self) {
  MutexLock lock(mutex);
  while (!stopping) {
    if (leading == 0) {
      lead(self);
    } else if (!queue.empty()) {
      serve();
    } else if (leading < kLeaders) {
      lead(self);
    } else {
      ++idle;
      work.wait(lock);
      --idle;
      called = false;
    }
  }
}

void Reactor::State::serve() {
  Task task = std::move(queue.front());
  queue.pop_front();
  call_for_hands();
  mutex.unlock();
  task->run();
  task.reset();
  mutex.lock();
}

void Reactor::State::lead(Own& self) {
  ++leading;
  call_for_hands();
  while (!stopping) {
    mutex.unlock();
    std::array<epoll_event, kEventsAtATime> events;
    const int count = ::epoll_wait(epoll.get(), events.data(), kEventsAtATime, -1);
    self.handling = true;
    for (int i = 0; i < count; ++i) handle(events[static_cast<size_t>(i)]);
    self.handling = false;
    mutex.lock();
    poked = false;
    if (stopping) {
      // stop() has emptied the queue, whose tasks are destroyed without the lock.
      mutex.unlock();
      self.requests.clear();
      mutex.lock();
      break;
    }
    for (Task& task : self.requests) queue.push_back(std::move(task));
    self.requests.clear();
    if (queue.empty()) continue;
    // Serves tasks if another thread stays with the sockets: another leader, or one that is woken
    // now.
    if (leading >= 2) break;
    if (idle > 0) {
      called = true;
      work.notify_one();
      break;
    }
  }
  --leading;
  if (stopping) poke();
}

void Reactor::State::handle(const epoll_event& event) {
  if (event.data.u64 == kWakeName) return;
  if (event.data.u64 == kClockName) return run_timers();
  const auto fd = static_cast<int>(static_cast<uint32_t>(event.data.u64));
  std::shared_ptr<Watch> watch;
  uint32_t events = event.events;
  {
    MutexLock lock(mutex);
    const auto found = watches.find(fd);
    if (found == watches.end() || found->second->age != event.data.u64 >> 32 ||
        found->second->events == 0)
      return;
    watch = found->second;
    if (watch->runner != std::thread::id()) {
      watch->missed |= events;
      return;
    }
    watch->runner = std::this_thread::get_id();
  }
  while (true) {
    watch->ready(events);
    MutexLock lock(mutex);
    events = std::exchange(watch->missed, 0);
    if (events != 0 && watch->events != 0 && !watch->forgotten) continue;
    watch->runner = {};
    if (watch->forgotten) handled.notify_all();
    return;
  }
}

void Reactor::State::run_timers() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex);
      clock_set = Clock::time_point::max();
      task = timers.take_due(Clock::now());
      if (!task) return set_clock();
    }
    task->run();
  }
}

void Reactor::State::set_clock() {
  const auto next = timers.next();
  if (!next || *next >= clock_set) return;
  clock_set = *next;
  const itimerspec at{.it_interval = {}, .it_value = timespec_of(*next)};
  ::timerfd_settime(clock.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

Reactor::Reactor(int workers, const std::function<void()>& first)
    : state_(std::make_shared<State>()) {
  LOCKSTEP_CHECK(workers >= 1, "a reactor has a worker");
  // Signals are left to the program's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string failure;
  try {
    MutexLock lock(state_->mutex);
    for (int i = 0; i <= workers; ++i) {
      state_->threads.emplace_back([state = state_, first] {
        Own self;
        self.state = state.get();
        own = &self;
        if (first) first();
        state->live(self);
        own = nullptr;
        MutexLock lock(state->mutex);
        state->done.push_back(std::this_thread::get_id());
        state->ended.notify_all();
      });
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure.empty()) return;
  stop(Clock::now() + std::chrono::seconds(10));
  throw SystemError("rpc: cannot start " + std::to_string(workers + 1) + " threads: " + failure,
                    EAGAIN);
}

Reactor::~Reactor() {
  stop(Clock::now() + std::chrono::seconds(10));
}

void Reactor::post(Task task) {
  MutexLock lock(state_->mutex);
  if (state_->stopping) {
    lock.unlock();
    return;
  }
  state_->queue.push_back(std::move(task));
  state_->call_for_hands();
}

void Reactor::post_here(Task task) {
  if (own && own->state == state_.get() && own->handling)
    own->requests.push_back(std::move(task));
  else
    post(std::move(task));
}

bool Reactor::busy() const {
  MutexLock lock(state_->mutex);
  return !state_->queue.empty();
}

uint64_t Reactor::at(Clock::time_point when, Task task) {
  MutexLock lock(state_->mutex);
  if (state_->stopping) {
    lock.unlock();
    return 0;
  }
  const uint64_t timer = state_->timers.add(when, std::move(task));
  state_->set_clock();
  return timer;
}

bool Reactor::cancel(uint64_t timer) {
  Task task;  // destroyed without the lock
  MutexLock lock(state_->mutex);
  task = state_->timers.take(timer);
  lock.unlock();
  return task != nullptr;
}

void Reactor::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  MutexLock lock(state_->mutex);
  auto watch = std::make_shared<State::Watch>();
  if (++state_->last_age == 0) state_->last_age = 1;
  watch->age = state_->last_age;
  watch->events = events;
  watch->ready = std::move(ready);
  epoll_event event{.events = events | EPOLLET,
                    .data = {.u64 = uint64_t{watch->age} << 32 | static_cast<uint32_t>(fd)}};
  if (::epoll_ctl(state_->epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw system_error("rpc: cannot wait for a descriptor", errno);
  state_->watches[fd] = std::move(watch);
}

void Reactor::arm(int fd, uint32_t events) {
  MutexLock lock(state_->mutex);
  const auto found = state_->watches.find(fd);
  if (found == state_->watches.end()) return;
  State::Watch& watch = *found->second;
  watch.events = events;
  epoll_event event{.events = events | EPOLLET,
                    .data = {.u64 = uint64_t{watch.age} << 32 | static_cast<uint32_t>(fd)}};
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::forget(int fd) {
  std::shared_ptr<State::Watch> watch;  // destroyed without the lock
  MutexLock lock(state_->mutex);
  const auto found = state_->watches.find(fd);
  if (found == state_->watches.end()) return;
  watch = std::move(found->second);
  state_->watches.erase(found);
  watch->forgotten = true;
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  // This lasts as long as a handler, which does not wait.
  while (watch->runner != std::thread::id() && watch->runner != std::this_thread::get_id())
    state_->handled.wait(lock);
  lock.unlock();
}

bool Reactor::is_own_thread() const {
  return own && own->state == state_.get();
}

void Reactor::stop(Clock::time_point deadline) {
  State& state = *state_;
  std::vector<std::thread> threads;
  {
    std::deque<Task> queue;  // destroyed without the lock
    std::vector<Task> timers;
    MutexLock lock(state.mutex);
    state.stopping = true;
    queue.swap(state.queue);
    timers = state.timers.take_all();
    state.work.notify_all();
    state.poke();
    threads.swap(state.threads);
    lock.unlock();
  }
  for (std::thread& thread : threads)
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();
  std::erase_if(threads, [](const std::thread& thread) { return !thread.joinable(); });
  size_t stuck = 0;
  {
    MutexLock lock(state.mutex);
    while (state.done.size() < threads.size())
      if (!state.ended.wait_until(lock, deadline)) break;
    for (std::thread& thread : threads) {
      if (std::find(state.done.begin(), state.done.end(), thread.get_id()) != state.done.end())
        continue;
      thread.detach();
      ++stuck;
    }
  }
  for (std::thread& thread : threads)
    if (thread.joinable()) thread.join();
  if (stuck > 0)
    log_warning("rpc: " + std::to_string(stuck) + " of " + std::to_string(threads.size()) +
                " threads did not end in time and stay behind in a function that they serve");
}

}  // namespace lockstep::inline v0::rpc::internal
