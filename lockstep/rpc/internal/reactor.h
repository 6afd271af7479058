// Reactor: the threads of an rpc agent. They take turns at waiting for sockets (leaders and
// followers; Schmidt et al., "Leader/Followers", 2000): the thread that has received a request
// serves it itself, so that a call is not handed from thread to thread. Two threads wait at a time:
// while one serves, the other is at the sockets already, and no thread has to be woken. One thread
// always stays with the sockets and the clock: when all others are busy, requests queue. Not a
// public header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/rpc/task.h"

namespace lockstep::inline v0::rpc::internal {

class Reactor {
 public:
  using Clock = std::chrono::steady_clock;

  // `workers` (>= 1) threads may serve requests at a time, besides the one that waits: workers + 1
  // threads are started here. They block all signals, and call `first` first. Throws SystemError.
  explicit Reactor(int workers, const std::function<void()>& first = nullptr);
  // Calls stop() unless it was called.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Queues a task for a worker, in order of arrival. Never waits. Tasks must not throw: one that
  // does ends the process. After stop() tasks are destroyed without having run.
  // Thread-safety: any thread.
  void post(Task task);
  // From a handler on the leader: like post(), but wakes no thread: the calling thread takes the
  // task itself once the handler has returned, if another thread waits for the sockets by then. On
  // other threads: post().
  void post_here(Task task);
  // Whether tasks wait for a worker now.
  bool busy() const;

  // Runs `task` on the leader at `when`, or soon after; it must not wait. Returns the number for
  // cancel(). Any thread.
  uint64_t at(Clock::time_point when, Task task);
  // True if the task will not run. Does not wait for a running task. Any thread.
  bool cancel(uint64_t timer);

  // Calls `ready` with epoll's events on a leader, one call at a time for a descriptor. It is edge
  // triggered: `ready` reads or writes until the system says EAGAIN or moves less than asked for,
  // or calls arm(). It must not wait. `arm` changes the events (0: none, not even errors); present
  // events are reported anew. forget() returns once `ready` is not running and will not run, unless
  // called from it. arm() and forget() do nothing for a descriptor that is not watched. Any thread.
  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void arm(int fd, uint32_t events);
  void forget(int fd);

  // Whether the calling thread belongs to the reactor.
  bool is_own_thread() const;
  // Waits at most until `deadline` for running tasks, drops the queued ones and the timers, and
  // joins the threads that ended. A thread that is stuck in a task is left behind and named in the
  // log. One of the reactor's own threads does not wait for itself; it is left behind, too, and
  // ends after its task.
  void stop(Clock::time_point deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::inline v0::rpc::internal
