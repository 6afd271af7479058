#include "lockstep/comm/engines/piped/piped_backend.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/device_engine.h"
#include "lockstep/comm/engines/piped/pipeline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/set_once.h"
#include "lockstep/device/event.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::piped {
namespace {

// The time between two turns of the thread: a tenth of the time since something last happened.
constexpr std::chrono::nanoseconds kShortestNap = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(1);

class PipedBackend final : public Backend, public DeviceOrder {
 public:
  PipedBackend(std::unique_ptr<Backend> host, std::unique_ptr<DataPath> path,
               Capabilities capabilities, int rank)
      : capabilities_(std::move(capabilities)),
        device_(capabilities_.device),
        rank_(rank),
        host_(*host),
        path_(*path),
        pipeline_(std::move(host), std::move(path), device_, interruption_) {}

  ~PipedBackend() override { close(); }

  const Capabilities& capabilities() const override { return capabilities_; }

  DeviceOrder* device_order() override { return this; }
  std::shared_ptr<void> mark() override {
    auto event = std::make_shared<device::Event>(device_);
    event->record();
    return event;
  }

  // The backend's thread gives the device its work, so that the caller can continue at once.
  std::unique_ptr<Request> start(const Call& call) override {
    auto transfer = std::make_shared<Transfer>(call, path_);
    const MutexLock lock(fresh_mutex_);
    fresh_.push_back(transfer);
    if (!thread_.joinable() && !stopped_) thread_ = std::thread([this] { move(); });
    changed_.notify_all();
    return std::make_unique<PipedRequest>(*this, std::move(transfer));
  }

  SymmetricMemory allocate_symmetric(int64_t bytes) override {
    const MutexLock lock(mutex_);
    return path_.allocate_symmetric(bytes);
  }

  void progress() override { try_turn(); }

  void set_siblings(SiblingProgress* siblings) override {
    const MutexLock lock(mutex_);
    pipeline_.set_siblings(siblings);
  }

  bool lost(int rank) const override {
    const MutexLock lock(mutex_);
    return host_.lost(rank);
  }

  Probe probe(int src, int tag) override {
    const MutexLock lock(mutex_);
    turn();  // posts the waiting receives
    return host_.probe(src, tag);
  }

  void abort(const Breakage& why) noexcept override {
    const MutexLock lock(mutex_);
    host_.abort(why);
    pipeline_.give_up(std::make_exception_ptr(
        PeerLost("this rank gave up what was under way: " + why.text, rank_)));
  }

  void interrupt(const Breakage& why) noexcept override {
    interruption_.set(why);
    host_.interrupt(why);
  }

  bool close() noexcept override {
    std::thread thread;
    {
      const MutexLock lock(fresh_mutex_);
      stopped_ = true;
      thread.swap(thread_);
      changed_.notify_all();
    }
    if (thread.joinable()) thread.join();
    const MutexLock lock(mutex_);
    return pipeline_.close();
  }

 private:
  class PipedRequest final : public Request {
   public:
    PipedRequest(PipedBackend& backend, std::shared_ptr<Transfer> transfer)
        : backend_(backend), transfer_(std::move(transfer)) {}

    bool poll() override {
      if (!transfer_->settled()) backend_.try_turn();
      if (!transfer_->settled()) return false;
      if (!device::captures_here() && transfer_->done()->reached()) return true;
      backend_.check(*transfer_);
      return false;
    }

    void wait(Deadline deadline) override {
      backend_.drive(*transfer_, deadline);
      while (device::captures_here() || !transfer_->done()->reached()) {
        if (deadline.expired()) {
          std::ostringstream text;
          text << transfer_->text() << " was called by all ranks, but after "
               << deadline.timeout_seconds() << " s " << backend_.device_.str()
               << " is not through with it; raise the time-out if it is only slow";
          throw Timeout(text.str());
        }
        if (const Breakage* why = backend_.interruption_.get())
          throw PeerLost("this rank gave up in " + transfer_->text() + ": " + why->text, -1);
        backend_.check(*transfer_);
        std::this_thread::sleep_for(kShortestNap);
      }
    }

    std::shared_ptr<Tail> order(Deadline deadline) override {
      backend_.drive(*transfer_, deadline);
      transfer_->done()->block(device::current_stream(backend_.device_));
      return std::make_shared<EventTail>(transfer_->done());
    }

   private:
    PipedBackend& backend_;
    std::shared_ptr<Transfer> transfer_;
  };

  // The waiting thread progresses the engine itself; the backend's thread rests meanwhile.
  void drive(Transfer& transfer, Deadline deadline) {
    if (transfer.settled()) return;
    const MutexLock lock(mutex_);
    take_fresh();
    pipeline_.drive(transfer, deadline);
  }

  // Checks a late device. A thread that is already inside will check again.
  void check(const Transfer& transfer) {
    if (!mutex_.try_lock()) return;
    std::exception_ptr error;
    try {
      pipeline_.check();
    } catch (const PeerLost& lost) {
      error = std::make_exception_ptr(PeerLost(transfer.text() + ": " + lost.what(), lost.rank()));
    }
    mutex_.unlock();
    if (error) std::rethrow_exception(error);
  }

  void try_turn() {
    if (!mutex_.try_lock()) return;  // another thread is inside
    turn();
    mutex_.unlock();
  }

  bool turn() noexcept LOCKSTEP_REQUIRES(mutex_) {
    take_fresh();
    return pipeline_.turn();
  }

  void take_fresh() LOCKSTEP_REQUIRES(mutex_) {
    const MutexLock lock(fresh_mutex_);
    for (auto& transfer : fresh_) pipeline_.add(std::move(transfer));
    fresh_.clear();
  }

  // The body of the thread.
  void move() {
    auto last_step = std::chrono::steady_clock::now();
    uint64_t steps = 0;
    while (true) {
      bool more = false;
      {
        const MutexLock lock(mutex_);
        more = turn();
        if (std::exchange(steps, pipeline_.steps()) != steps)
          last_step = std::chrono::steady_clock::now();
      }
      const auto now = std::chrono::steady_clock::now();
      const auto nap =
          std::clamp<std::chrono::nanoseconds>((now - last_step) / 10, kShortestNap, kLongestNap);
      MutexLock lock(fresh_mutex_);
      if (more && !stopped_ && fresh_.empty()) changed_.wait_until(lock, now + nap);
      while (!more && !stopped_ && fresh_.empty()) changed_.wait(lock);
      if (stopped_) return;
    }
  }

  Capabilities capabilities_;
  c10::Device device_;
  int rank_;
  Backend& host_;  // of the pipeline, as the next one
  DataPath& path_;
  SetOnce<Breakage> interruption_;
  mutable Mutex mutex_;  // held while moving the engine; the thread's turns are short
  Pipeline pipeline_ LOCKSTEP_GUARDED_BY(mutex_);
  Mutex fresh_mutex_;  // acquired after mutex_
  ConditionVariable changed_;
  std::vector<std::shared_ptr<Transfer>> fresh_ LOCKSTEP_GUARDED_BY(fresh_mutex_);
  std::thread thread_ LOCKSTEP_GUARDED_BY(fresh_mutex_);
  bool stopped_ LOCKSTEP_GUARDED_BY(fresh_mutex_) = false;
};

}  // namespace

Capabilities on_device(Capabilities host, const std::string& name, c10::Device device) {
  host.backend = name;
  host.device = device;
  host.stream_ordered = true;
  host.shared_memory = false;  // it belongs to the host's engine, which stands beside this one
  return host;
}

std::unique_ptr<Backend> make_piped_backend(std::unique_ptr<Backend> host,
                                            std::unique_ptr<DataPath> path,
                                            Capabilities capabilities, int rank) {
  return std::make_unique<PipedBackend>(std::move(host), std::move(path), std::move(capabilities),
                                        rank);
}

}  // namespace lockstep::inline v0::piped
