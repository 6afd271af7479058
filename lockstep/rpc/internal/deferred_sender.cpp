#include <ATen/core/grad_mode.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/rpc/internal/devices.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

// The time between two looks at the devices: short at first, because most copies are short.
constexpr std::chrono::nanoseconds kFirstNap = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(1);

}  // namespace

bool Copies::there() const {
  return std::all_of(events.begin(), events.end(),
                     [](const device::Event& event) { return event.reached(); });
}

// The state that the sender and its thread share: the message that the thread sends may be the last
// owner of the agent.
class DeferredSender::State {
 public:
  c10::Stream stream_of(c10::Device device) {
    const MutexLock lock(mutex_);
    const auto found = streams_.find(device.str());
    if (found != streams_.end()) return found->second;
    return streams_.emplace(device.str(), device::side_stream(device)).first->second;
  }

  static bool post(const std::shared_ptr<State>& self, Copies copies, Line line, Deadline deadline,
                   Send send) {
    const MutexLock lock(self->mutex_);
    if (self->stopped_) return false;
    self->bytes_[line.link] += copies.bytes;
    self->letters_.push_back({std::move(copies), line, deadline, std::move(send)});
    if (!self->thread_.joinable()) {
      sigset_t all, before;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
      self->thread_ = std::thread([self] { self->run(); });
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    self->changed_.notify_all();
    return true;
  }

  bool has(Line line) const {
    const MutexLock lock(mutex_);
    return sending_ == line ||
           std::any_of(letters_.begin(), letters_.end(),
                       [&](const Letter& letter) { return letter.line == line; });
  }

  bool wait_for_room(const void* link, size_t bytes, Deadline deadline) {
    MutexLock lock(mutex_);
    while (waiting(link) >= bytes && !stopped_)
      if (!changed_.wait_until(lock, deadline.time())) break;
    return waiting(link) < bytes;
  }

  void stop(Deadline deadline) noexcept {
    std::thread thread;
    std::list<Letter> left;  // notified and freed without the lock
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      left.swap(letters_);
      thread.swap(thread_);
      changed_.notify_all();
      if (thread.get_id() != std::this_thread::get_id())
        while (thread.joinable() && !over_)
          if (!changed_.wait_until(lock, deadline.time())) break;
      // The thread owns the state that it needs, too.
      if (thread.joinable() && !over_) thread.detach();
    }
    if (thread.joinable()) thread.join();
    const auto gone = std::make_exception_ptr(Cancelled("this agent was shut down"));
    for (const Letter& letter : left) letter.send(nullptr, gone);
  }

 private:
  struct Letter {
    Copies copies;
    Line line;
    Deadline deadline;
    Send send;
    bool there = false;
    std::exception_ptr error = nullptr;
  };

  void run() {
    std::chrono::nanoseconds nap = kFirstNap;
    MutexLock lock(mutex_);
    while (true) {
      if (letters_.empty()) nap = kFirstNap;
      while (!stopped_ && letters_.empty()) changed_.wait(lock);
      if (stopped_) {
        over_ = true;
        return changed_.notify_all();
      }
      if (const auto found = next(); found != letters_.end()) {
        std::list<Letter> one;  // it may hold the last owner of the agent
        one.splice(one.begin(), letters_, found);
        Letter& letter = one.front();
        sending_ = letter.line;
        lock.unlock();
        letter.send(letter.there ? &letter.copies.tensors : nullptr, letter.error);
        lock.lock();
        sending_.reset();
        const auto bytes = bytes_.find(letter.line.link);
        if (bytes != bytes_.end() && (bytes->second -= letter.copies.bytes) == 0)
          bytes_.erase(bytes);
        changed_.notify_all();
        lock.unlock();
        one.clear();
        lock.lock();
        nap = kFirstNap;
        continue;
      }
      changed_.wait_until(lock, std::chrono::steady_clock::now() + nap);
      nap = std::min(nap * 2, kLongestNap);
    }
  }

  // The first letter with no earlier one in its line, and whose copies have finished or failed, or
  // whose time has run out.
  std::list<Letter>::iterator next() LOCKSTEP_REQUIRES(mutex_) {
    std::set<Line> held;
    for (auto letter = letters_.begin(); letter != letters_.end(); ++letter) {
      if (letter->line.order != 0 && held.contains(letter->line)) continue;
      try {
        letter->there = letter->copies.there();
      } catch (...) {  // an error of the device: it ends only that device's messages
        letter->error = std::current_exception();
      }
      if (letter->there || letter->error || letter->deadline.expired()) return letter;
      held.insert(letter->line);
    }
    return letters_.end();
  }

  size_t waiting(const void* link) const LOCKSTEP_REQUIRES(mutex_) {
    const auto found = bytes_.find(link);
    return found == bytes_.end() ? 0 : found->second;
  }

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, c10::Stream> streams_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Letter> letters_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Line> sending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<const void*, size_t> bytes_ LOCKSTEP_GUARDED_BY(mutex_);  // per link
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool over_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // its thread has ended
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);
};

DeferredSender::DeferredSender() : state_(std::make_shared<State>()) {}

DeferredSender::~DeferredSender() {
  stop(Deadline::seconds(5));
}

Copies DeferredSender::copy(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Copies copies;
  std::vector<c10::Stream> streams;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu()) {
      copies.tensors.push_back(tensor);
      continue;
    }
    if (device::captures_here())
      throw InvalidArgument("a tensor on " + tensor.device().str() +
                            " cannot be sent while this thread captures a graph; send it before, "
                            "or after a replay");
    const c10::Stream side = state_->stream_of(tensor.device());
    device::order(device::current_stream(tensor.device()), side);
    const c10::StreamGuard guard(side);
    at::Tensor host = device::empty_pinned(tensor.sizes(), tensor.scalar_type(), tensor.device());
    copies.tensors.push_back(host.copy_(tensor.detach(), /*non_blocking=*/true));
    tensor.record_stream(side);
    copies.bytes += tensor.nbytes();
    if (std::find(streams.begin(), streams.end(), side) == streams.end()) streams.push_back(side);
  }
  std::vector<device::Event> read;
  for (const c10::Stream& stream : streams) {
    copies.events.emplace_back(stream.device()).record(stream);
    read.emplace_back(stream.device()).record(stream);  // an event belongs to one thread at a time
  }
  copies.read = point_of(std::move(read));
  return copies;
}

bool DeferredSender::post(Copies copies, Line line, Deadline deadline, Send send) {
  return State::post(state_, std::move(copies), line, deadline, std::move(send));
}

bool DeferredSender::has(Line line) const {
  return state_->has(line);
}

bool DeferredSender::wait_for_room(const void* link, size_t bytes, Deadline deadline) {
  return state_->wait_for_room(link, bytes, deadline);
}

void DeferredSender::stop(Deadline deadline) noexcept {
  state_->stop(deadline);
}

}  // namespace lockstep::inline v0::rpc::internal
