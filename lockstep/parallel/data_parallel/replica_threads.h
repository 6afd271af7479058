// One thread per replica of a model, for the model's lifetime.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::data_parallel {

class ReplicaThreads {
 public:
  // Each thread gets its share of the intra-op threads that the caller has now (at least one), so
  // that together they do not have more.
  explicit ReplicaThreads(size_t count);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Runs task(i) on thread i for each i < count, and waits for all. The threads use the caller's
  // thread-local state of libtorch meanwhile: grad mode, autocast, and the like. Returns the
  // exception of each task, null for success.
  std::vector<std::exception_ptr> run(size_t count, const std::function<void(size_t)>& task);

 private:
  void loop(size_t index, int intra_op_threads);
  void end();

  Mutex mutex_;
  ConditionVariable changed_;
  uint64_t round_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // rises with each run
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  size_t active_ LOCKSTEP_GUARDED_BY(mutex_) = 0;   // threads in this round
  size_t running_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of these, threads that are not done
  const std::function<void(size_t)>* task_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;  // of this round
  std::vector<std::exception_ptr> errors_ LOCKSTEP_GUARDED_BY(mutex_);             // by thread
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::inline v0::data_parallel
