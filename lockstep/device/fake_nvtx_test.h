// FakeNvtx: libtorch's NVTX as a test sees it, also where libtorch was built without CUDA.
#pragma once

#include <torch/csrc/profiler/stubs/base.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::device {

// Takes the place of libtorch's own as long as it lives: one at a time, and other threads begin
// after it and end before it.
class FakeNvtx final : public torch::profiler::impl::ProfilerStubs {
 public:
  FakeNvtx() : former_(torch::profiler::impl::cudaStubs()) {
    torch::profiler::impl::registerCUDAMethods(this);
  }
  ~FakeNvtx() override {
    torch::profiler::impl::registerCUDAMethods(
        const_cast<torch::profiler::impl::ProfilerStubs*>(former_));
  }
  FakeNvtx(const FakeNvtx&) = delete;
  FakeNvtx& operator=(const FakeNvtx&) = delete;

  // The ranges that the calling thread has begun, in order, each with those that it lies within:
  // "step 3/forward".
  std::vector<std::string> ranges() const {
    const MutexLock lock(mutex_);
    const auto found = threads_.find(std::this_thread::get_id());
    return found == threads_.end() ? std::vector<std::string>() : found->second.begun;
  }
  // How many of all threads have not ended.
  size_t open() const {
    const MutexLock lock(mutex_);
    size_t count = 0;
    for (const auto& [id, thread] : threads_) count += thread.open.size();
    return count;
  }

  bool enabled() const override { return true; }
  void rangePush(const char* name) const override {
    const MutexLock lock(mutex_);
    Thread& thread = threads_[std::this_thread::get_id()];
    thread.open.push_back(thread.open.empty() ? name : thread.open.back() + "/" + name);
    thread.begun.push_back(thread.open.back());
  }
  void rangePop() const override {
    const MutexLock lock(mutex_);
    threads_.at(std::this_thread::get_id()).open.pop_back();
  }
  void mark(const char*) const override {}
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

 private:
  struct Thread {
    std::vector<std::string> open, begun;
  };
  const torch::profiler::impl::ProfilerStubs* const former_;
  mutable Mutex mutex_;
  mutable std::map<std::thread::id, Thread> threads_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::device
