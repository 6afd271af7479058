// Reactor: the threads of an rpc agent. They take turns at waiting for sockets (leaders and followers; Schmidt et al.,
// "Leader/Followers", 2000): whoever has received a request serves it itself, so that a call is not handed from thread
// to thread. Two threads wait at a time: while one serves, the other is with the sockets already, and nobody has to be
// woken. One thread always stays with the sockets and the clock: when all others are busy, requests queue. Not a public
// header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/rpc/task.h"

namespace lockstep::rpc::internal {

class Reactor {
 public:
  using Clock = std::chrono::steady_clock;

  // `workers` threads that may serve requests at a time, >= 1, besides the one that waits: workers + 1 threads,
  // started here. They block all signals, and call `first` first. Throws SystemError.
  explicit Reactor(int workers, const std::function<void()>& first = nullptr);
  // stop(), if nobody has.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Queues a task for a worker, in order of coming. Never waits. Tasks do not throw: one that does ends the process.
  // Any thread. After stop() tasks are destroyed without having run.
  void post(Task task);
  // From a handler on the leader: as post(), but nobody is woken for it: the calling thread takes to the queue itself
  // once the handler has returned, if another thread waits for the sockets by then. Elsewhere: post().
  void post_here(Task task);
  // Whether tasks wait for a worker now.
  bool busy() const;

  // Runs `task` on the leader at `when`, or soon after; it must not wait. -> the number for cancel(). Any thread.
  uint64_t at(Clock::time_point when, Task task);
  // True: it will not run. Does not wait for one that runs. Any thread.
  bool cancel(uint64_t timer);

  // Calls `ready` with epoll's events on a leader, one call at a time for a descriptor. Edge triggered: it reads or
  // writes until the system says EAGAIN or moves less than asked for, or calls arm(). It must not wait. `arm` changes
  // what is waited for (0: nothing, errors neither); what is there already counts anew. forget() returns once `ready`
  // is not running and will not run, unless called from it. Any thread. arm() and forget() of what is not watched do
  // nothing.
  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void arm(int fd, uint32_t events);
  void forget(int fd);

  // Whether this thread is one of the reactor's.
  bool is_own_thread() const;
  // Waits at most until `deadline` for running tasks, drops the queued ones and the timers, joins the threads that
  // ended; a thread that is stuck in a task is left behind and named in the log. A thread of its own does not wait for itself, and is
  // left behind, too; it ends after its task.
  void stop(Clock::time_point deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::rpc::internal
