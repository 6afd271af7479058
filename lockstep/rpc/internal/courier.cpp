#include <ATen/core/grad_mode.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/core/mutex.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/rpc/internal/devices.h"

namespace lockstep::rpc::internal {
namespace {

// Between two looks at the devices: short at first, since most copies are.
constexpr std::chrono::nanoseconds kFirstNap = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(1);

}  // namespace

bool Copies::there() const {
  return std::all_of(events.begin(), events.end(),
                     [](const device::Event& event) { return event.reached(); });
}

// What the courier and its thread share: the thread may send the message that holds the agent last.
class Courier::State {
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
    self->bytes_ += copies.bytes;
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
    return std::any_of(letters_.begin(), letters_.end(),
                       [&](const Letter& letter) { return letter.line == line; });
  }

  bool wait_for_room(size_t bytes, Deadline deadline) {
    MutexLock lock(mutex_);
    while (bytes_ >= bytes && !stopped_)
      if (!changed_.wait_until(lock, deadline.time())) break;
    return bytes_ < bytes;
  }

  void stop() noexcept {
    std::thread thread;
    std::list<Letter> dropped;  // are freed without the lock
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
      thread.swap(thread_);
      changed_.notify_all();
    }
    if (thread.joinable()) {
      if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
      else
        thread.join();
    }
    const MutexLock lock(mutex_);
    dropped.swap(letters_);
  }

 private:
  struct Letter {
    Copies copies;
    Line line;
    Deadline deadline;
    Send send;
  };

  void run() {
    std::chrono::nanoseconds nap = kFirstNap;
    MutexLock lock(mutex_);
    while (true) {
      if (letters_.empty()) nap = kFirstNap;
      while (!stopped_ && letters_.empty()) changed_.wait(lock);
      if (stopped_) return;
      if (Letter* const letter = next()) {
        lock.unlock();
        letter->send(letter->copies.there() ? &letter->copies.tensors : nullptr);
        done(letter);
        lock.lock();
        nap = kFirstNap;
        continue;
      }
      changed_.wait_until(lock, std::chrono::steady_clock::now() + nap);
      nap = std::min(nap * 2, kLongestNap);
    }
  }

  // The first letter of a line whose copies are there, or whose time is over. It stays where it is: only this thread takes any away.
  Letter* next() LOCKSTEP_REQUIRES(mutex_) {
    std::set<Line> held;
    for (Letter& letter : letters_) {
      if (held.contains(letter.line)) continue;
      if (letter.copies.there() || letter.deadline.expired()) return &letter;
      held.insert(letter.line);
    }
    return nullptr;
  }

  void done(const Letter* letter) LOCKSTEP_EXCLUDES(mutex_) {
    std::list<Letter> over;  // what it holds may be the last that holds the agent
    const MutexLock lock(mutex_);
    const auto at = std::find_if(letters_.begin(), letters_.end(),
                                 [&](const Letter& one) { return &one == letter; });
    bytes_ -= at->copies.bytes;
    over.splice(over.begin(), letters_, at);
    changed_.notify_all();
  }

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, c10::Stream> streams_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Letter> letters_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);
};

Courier::Courier() : state_(std::make_shared<State>()) {}

Courier::~Courier() {
  stop();
}

Copies Courier::copy(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Copies copies;
  std::vector<c10::Stream> streams;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu()) {
      copies.tensors.push_back(tensor);
      continue;
    }
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
    read.emplace_back(stream.device()).record(stream);  // an event is one thread's at a time
  }
  copies.read = point_of(std::move(read));
  return copies;
}

bool Courier::post(Copies copies, Line line, Deadline deadline, Send send) {
  return State::post(state_, std::move(copies), line, deadline, std::move(send));
}

bool Courier::has(Line line) const {
  return state_->has(line);
}

bool Courier::wait_for_room(size_t bytes, Deadline deadline) {
  return state_->wait_for_room(bytes, deadline);
}

void Courier::stop() noexcept {
  state_->stop();
}

}  // namespace lockstep::rpc::internal
