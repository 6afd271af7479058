#include "lockstep/parallel/data_parallel/replica_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/internal/vector_maths.h"

namespace lockstep::inline v0::data_parallel {
namespace {

// The part of autocast that ThreadLocalState leaves out: its nesting, during which casts of
// parameters are kept for a forward, and whether they are.
class SameAutocast {
 public:
  SameAutocast(const amp::AutocastSettings& cpu, const amp::AutocastSettings& cuda) {
    if (cpu.enabled) cpu_.emplace(cpu);
    if (cuda.enabled) cuda_.emplace(cuda);
  }

 private:
  std::optional<amp::Autocast> cpu_, cuda_;
};

}  // namespace

ReplicaThreads::ReplicaThreads(size_t count) : running_(count) {
  errors_.resize(count);
  settle_vector_maths();
  const int own = at::get_num_threads();
  const int share = std::max(1, own / static_cast<int>(std::max<size_t>(1, count)));
  try {
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this, i, share] { loop(i, share); });
  } catch (...) {  // no more threads available
    end();
    at::set_num_threads(own);
    throw;
  }
  MutexLock lock(mutex_);
  while (running_ != 0) changed_.wait(lock);
  // A thread's call of set_num_threads also sets the default of later threads: restores the
  // caller's.
  at::set_num_threads(own);
}

ReplicaThreads::~ReplicaThreads() {
  end();
}

void ReplicaThreads::end() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::exception_ptr> ReplicaThreads::run(size_t count,
                                                    const std::function<void(size_t)>& task) {
  const at::ThreadLocalState state;
  const auto cpu = amp::current_autocast(at::kCPU), cuda = amp::current_autocast(at::kCUDA);
  const std::function<void(size_t)> with_state = [&](size_t index) {
    const at::ThreadLocalStateGuard same_state(state);
    const SameAutocast same_autocast(cpu, cuda);
    task(index);
  };
  MutexLock lock(mutex_);
  std::fill(errors_.begin(), errors_.end(), nullptr);
  task_ = &with_state;
  active_ = running_ = count;
  ++round_;
  changed_.notify_all();
  while (running_ != 0) changed_.wait(lock);
  task_ = nullptr;
  return {errors_.begin(), errors_.begin() + static_cast<std::ptrdiff_t>(count)};
}

void ReplicaThreads::loop(size_t index, int intra_op_threads) {
  at::set_num_threads(intra_op_threads);
  MutexLock lock(mutex_);
  if (--running_ == 0) changed_.notify_all();
  uint64_t seen = 0;
  while (true) {
    while (!ending_ && round_ == seen) changed_.wait(lock);
    if (ending_) return;
    seen = round_;
    if (index >= active_) continue;
    const auto* const task = task_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*task)(index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[index] = error;
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace lockstep::inline v0::data_parallel
