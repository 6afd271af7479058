// A fake device for tests on machines without one: its streams are threads, and an engine runs its
// operations on a stream. Its memory is the host's, so that a test can see what has been done when.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

// An event that is pending until it is set.
class FakeEvent {
 public:
  void set(std::exception_ptr error = nullptr) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  bool is_set() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  // Whether it was set before the deadline.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.time(), [this] { return done_; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  std::exception_ptr error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

// Runs the given functions in order. The destructor waits for all of them.
class FakeStream {
 public:
  FakeStream() : thread_([this] { run(); }) {}
  ~FakeStream() {
    give(nullptr);
    thread_.join();
  }
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  void give(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  // An event that is set once the functions given so far are done.
  std::shared_ptr<FakeEvent> record() {
    auto event = std::make_shared<FakeEvent>();
    give([event] { event->set(); });
    return event;
  }
  void come_after(std::shared_ptr<FakeEvent> event) {
    give([event = std::move(event)] { event->wait(); });
  }
  void synchronize() { record()->wait(); }

  // The calling thread's current stream.
  static FakeStream*& current() {
    thread_local FakeStream* stream = nullptr;
    return stream;
  }

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (!work) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

// Runs the calls of a threads' engine on a stream of its own, each once `gate` is set.
class FakeDeviceBackend final : public Backend, public DeviceOrder {
 public:
  FakeDeviceBackend(std::unique_ptr<Backend> inner, std::shared_ptr<FakeEvent> gate)
      : inner_(std::move(inner)), gate_(std::move(gate)), capabilities_(inner_->capabilities()) {
    capabilities_.backend = "fake device";
    capabilities_.stream_ordered = true;
  }
  // Other ranks may still be in an operation that this one has completed: only a pending one needs
  // the abort.
  ~FakeDeviceBackend() override {
    if (pending_ > 0) abort({.text = "the backend goes"});
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  DeviceOrder* device_order() override { return this; }
  std::shared_ptr<void> mark() override { return FakeStream::current()->record(); }

  std::unique_ptr<Request> start(const Call& call) override {
    auto done = std::make_shared<FakeEvent>();
    if (call.after) stream_.come_after(std::static_pointer_cast<FakeEvent>(call.after));
    ++pending_;
    stream_.give([this, call, done] {
      gate_->wait();
      std::exception_ptr error;
      try {
        inner_->run(call, std::chrono::seconds(30));
      } catch (const Error&) {
        error = std::current_exception();
      }
      --pending_;
      done->set(error);
    });
    return std::make_unique<FakeRequest>(std::move(done));
  }

  void progress() override {}
  // Like a device whose operations are cancelled: pending waits end.
  void abort(const Breakage& why) noexcept override {
    inner_->interrupt(why);
    gate_->set();
  }

 private:
  class FakeTail final : public Tail {
   public:
    explicit FakeTail(std::shared_ptr<FakeEvent> done) : done_(std::move(done)) {}
    bool over() noexcept override { return done_->is_set(); }

   private:
    std::shared_ptr<FakeEvent> done_;
  };

  class FakeRequest final : public Request {
   public:
    explicit FakeRequest(std::shared_ptr<FakeEvent> done) : done_(std::move(done)) {}
    bool poll() override {
      if (!done_->is_set()) return false;
      if (const std::exception_ptr error = done_->error()) std::rethrow_exception(error);
      return true;
    }
    void wait(Deadline deadline) override {
      if (!done_->wait(deadline)) throw Timeout("the fake device is late");
      poll();
    }
    std::shared_ptr<Tail> order(Deadline) override {
      FakeStream::current()->come_after(done_);
      return std::make_shared<FakeTail>(done_);
    }

   private:
    std::shared_ptr<FakeEvent> done_;
  };

  std::unique_ptr<Backend> inner_;
  std::shared_ptr<FakeEvent> gate_;
  Capabilities capabilities_;
  std::atomic<int> pending_ = 0;
  FakeStream stream_;  // ends before the memory that it works on
};

}  // namespace lockstep::inline v0
