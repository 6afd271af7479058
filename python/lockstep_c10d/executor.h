// Executor: runs a process group's operations over a Communicator, from whichever threads ask.
//
// c10d lets any thread call and expects every operation to go on without further calls; a
// Communicator wants one thread at a time and goes on inside its calls. So a lock guards the
// communicator, operations are started in the order in which they were called, and whoever waits
// drives all of them. A helper thread, made at the first operation that nobody waits for at once,
// drives them while nobody does.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::python {

// One operation, as data.
struct Task {
  using Step = std::function<lockstep::Work(Communicator&, Site)>;

  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";                        // the profiler's name for it; static
  std::vector<at::Tensor> inputs;                // shown to the profiler, kept alive
  std::vector<std::vector<at::Tensor>> outputs;  // the result
  std::chrono::milliseconds timeout{};
  bool async = true;     // false: the caller waits inside the call
  bool message = false;  // a send or receive: runs beside the collectives
  Site site;             // of whoever called
  // Started one after another; the next one when the last one is over. Later collectives wait for
  // the last step to start, so that all ranks start theirs in one order.
  std::vector<Step> steps;
  int known_source = -1;  // of a receive
  // A receive from anybody: the rank that has a message, or -1. Asked before the first step.
  std::function<int(Communicator&)> source;
  // After the last step, outside the lock: puts staged results where they belong.
  std::function<void()> finish;
};

class Executor;

// Wakes one thread; a ring that nobody waits for is kept.
class Bell {
 public:
  void ring();
  void wait();
  void wait_for(std::chrono::microseconds longest);

 private:
  std::mutex mutex_;
  std::condition_variable rings_;
  bool rung_ = false;
};

// What c10d's callers get. Completed by the executor.
class ExecutorWork final : public c10d::Work {
 public:
  ExecutorWork(int rank, uint64_t sequence, Task task, std::shared_ptr<Executor> executor);

  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override;
  // Throws what the operation failed with; at an explicit time-out, without giving it up.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  friend class Executor;
  bool completed() const { return over_.load(std::memory_order_acquire); }
  void complete(std::exception_ptr error);
  void complete_future(std::unique_lock<std::mutex> lock);

  const uint64_t sequence_;
  Task task_;
  std::shared_ptr<Executor> executor_;
  std::atomic<bool> over_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
  bool future_set_ = false;                         // guarded by mutex_
  // Under the executor's lock:
  lockstep::Work step_;
  size_t started_ = 0;                // steps
  std::optional<Deadline> deadline_;  // from when nothing before it was in the way
  std::atomic<int> source_{-1};
};

class Executor : public std::enable_shared_from_this<Executor> {
 public:
  explicit Executor(Communicator comm);
  ~Executor();

  // Starts the task, or queues it behind a collective that has steps to go. Throws InvalidArgument
  // as the communicator does.
  c10::intrusive_ptr<ExecutorWork> submit(uint64_t sequence, Task task);

  // Drives the operations until `work` is over; false if the deadline passes before.
  bool wait(const ExecutorWork& work, const std::optional<Deadline>& deadline);
  // One round of progress.
  void poke();
  // Makes the helper look: at once, or soon.
  void wake_helper(bool at_once);
  // Drives a message no more; its buffers stay valid while the communicator lives.
  void forget(const ExecutorWork& work);

  // Breaks the communicator, everywhere.
  void abort(const std::string& reason) noexcept;
  // Gives pending operations a moment to end, fails the rest, and leaves the group. Idempotent.
  void close();

 private:
  using Finished = std::vector<std::pair<c10::intrusive_ptr<ExecutorWork>, std::exception_ptr>>;

  // Until `over`, which is asked without the lock, says so.
  bool drive(const std::function<bool()>& over, const std::optional<Deadline>& deadline);
  void poll(Finished& finished, bool check_deadlines);  // under the lock
  bool advance(ExecutorWork& work, bool check_deadline);
  static void complete(Finished& finished);
  void help();

  std::unique_lock<std::mutex> enter();

  std::mutex mutex_;                                      // the lock; held for microseconds
  std::optional<Communicator> comm_;                      // nullopt once closed
  std::deque<c10::intrusive_ptr<ExecutorWork>> pending_;  // in the order of their calls
  std::thread helper_;
  const int rank_;

  std::atomic<size_t> count_{0};  // of pending_
  std::atomic<int> drivers_{0};   // threads in wait()
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_helper_{false};
  std::atomic<bool> helper_sleeps_{false};  // until it is woken
  Bell bell_;                               // what wakes it
};

}  // namespace lockstep::inline v0::python
