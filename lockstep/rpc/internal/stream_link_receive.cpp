#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/ticks.h"
#include "lockstep/rpc/internal/stream_link.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr int kAsked = 50;  // ms; the interval at which done() is asked at least
// The leader's next look after the last receive_until().
constexpr auto kHandedBack = std::chrono::milliseconds(5);
constexpr int kReadsAtATime = 32;  // of one link, afterwards it is the others' turn

}  // namespace

StreamLink::StreamLink(std::shared_ptr<LinkContext> context, UniqueFd fd, Introduction introduction,
                       const std::string& ready)
    : context_(std::move(context)),
      fd_(std::move(fd)),
      introduction_(std::move(introduction)),
      receiver_(context_->limits.message_bytes, context_->memory) {
  MutexLock lock(send_mutex_);
  filling_.add(ready);
  queued_ = ready.size();
}

StreamLink::~StreamLink() = default;

void StreamLink::start() {
  {
    MutexLock lock(look_mutex_);
    looks_ = true;
    looked_at_ = true;
    context_->reactor.watch(fd_.get(), EPOLLIN | EPOLLRDHUP,
                            [self = shared_from_this()](uint32_t events) { self->ready(events); });
  }
  flush();
}

void StreamLink::look(bool in) {
  MutexLock lock(look_mutex_);
  looks_ = in;
  looked_at_ = in;
  context_->reactor.arm(fd_.get(),
                        (looks_ ? EPOLLIN | EPOLLRDHUP : 0U) | (looks_for_room_ ? EPOLLOUT : 0U));
}

void StreamLink::look_for_room(bool out) {
  MutexLock lock(look_mutex_);
  looks_for_room_ = out;
  context_->reactor.arm(fd_.get(),
                        (looks_ ? EPOLLIN | EPOLLRDHUP : 0U) | (looks_for_room_ ? EPOLLOUT : 0U));
}

void StreamLink::ready(uint32_t events) {
  if (events & EPOLLOUT) {
    look_for_room(false);
    bool mine = false;
    {
      MutexLock lock(send_mutex_);
      if (blocked_ && !broken_) mine = being_written_ = true;
      blocked_ = false;
    }
    if (mine) write();
  }
  if (events & ~static_cast<uint32_t>(EPOLLOUT))
    read_as_leader((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
}

// The socket is edge triggered, so this reads until nothing is left or, if the other end is gone,
// to the very end.
void StreamLink::read_as_leader(bool to_the_end) {
  if (reading_.exchange(true)) {
    others_wait_ = true;  // the reading thread makes sure that the data is found
    if (reading_.exchange(true)) return;
  }
  leader_reads_.store(true, std::memory_order_relaxed);
  const std::shared_ptr<Link> self = shared_from_this();
  bool more = false;
  for (int turn = 0; !lost(); ++turn) {
    if (turn == kReadsAtATime) {
      more = true;
      break;
    }
    const Got got = read_once(self);
    if (got == Got::kNothing || got == Got::kEnd || (got == Got::kAll && !to_the_end)) break;
  }
  leader_reads_.store(false, std::memory_order_relaxed);
  stop_reading();
  if (more) look(true);
}

// The leader reads only for a moment: a thread that arrives meanwhile waits briefly.
bool StreamLink::begin_reading(const std::function<bool()>& done) {
  if (!reading_.exchange(true)) return true;
  others_wait_ = true;
  if (!reading_.exchange(true)) return true;
  for (int i = 0; i < 50 && leader_reads_.load(std::memory_order_relaxed) && !done(); ++i) {
    std::this_thread::yield();
    if (!reading_.exchange(true)) return true;
  }
  return false;
}

bool StreamLink::look_for_a_moment(const std::shared_ptr<Link>& self,
                                   const std::function<bool()>& done) {
  const auto end = Reactor::Clock::now() + kReplySpin;
  do {
    if (read_once(self) != Got::kNothing && done()) return true;
    cpu_pause();
  } while (!lost() && Reactor::Clock::now() < end);
  return done();
}

bool StreamLink::receive_until(const std::function<bool()>& done, Deadline deadline) {
  if (!begin_reading(done)) return done();
  if (looked_at_.load()) look(false);
  const std::shared_ptr<Link> self = shared_from_this();
  bool is = done();
  if (!is && spin_.worth_it()) {
    is = look_for_a_moment(self, done);
    spin_.ended(is);
  }
  while (!is && !lost()) {
    if (deadline.expired()) break;
    // Not recv(): a thread that waits inside it is also woken when the other end takes sent data.
    pollfd waiting{fd_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.poll_ms(kAsked)) > 0) read_once(self);
    is = done();
  }
  stop_reading();
  hand_back();
  return is;
}

// The thread stops reading. A thread that closed the link meanwhile leaves the last callback to it.
void StreamLink::stop_reading() {
  reading_.store(false);
  say_lost();
}

// Lets the leader look at the socket again.
void StreamLink::hand_back() {
  if (lost()) return;
  // Where the leader watches already, data may have arrived while this thread was reading, and its
  // event may be lost.
  if (others_wait_.exchange(false) || looked_at_.load() || calls.load() > 0) return look(true);
  if (handing_back_.exchange(true)) return;
  context_->reactor.at(Reactor::Clock::now() + kHandedBack, task_of([weak = weak_from_this()] {
                         const auto self = weak.lock();
                         if (!self) return;
                         self->handing_back_ = false;
                         if (!self->reading_.load() && !self->lost()) self->look(true);
                       }));
}

StreamLink::Got StreamLink::read_once(const std::shared_ptr<Link>& self) {
  try {
    const auto places = receiver_.places();
    size_t room = 0;
    for (const iovec& place : places) room += place.iov_len;
    ssize_t n = 0;
    if (places.size() == 1) {
      n = ::recv(fd_.get(), places[0].iov_base, places[0].iov_len, MSG_DONTWAIT);
    } else {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(places.data());
      message.msg_iovlen = places.size();
      n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Got::kNothing;
    if (n < 0 && errno == EINTR) return Got::kSome;
    if (n <= 0) {
      end(n == 0 || errno == ECONNRESET || errno == EPIPE ? why_it_ended()
          : errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH
              ? std::string("its host does not answer any more")
              : std::string("the connection failed: ") + std::strerror(errno));
      return Got::kEnd;
    }
    handing_out_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    receiver_.came(static_cast<size_t>(n),
                   [&](Receiver::Message& message) { hand_out(self, message); });
    handing_out_.store({}, std::memory_order_relaxed);
    if (std::exchange(answered_, false)) flush();
    return static_cast<size_t>(n) < room ? Got::kAll : Got::kSome;
  } catch (const BadFrame& error) {
    context_->refused(peer().str() + " sent " + error.what());
    end(std::string("it sent what is no message of rpc: ") + error.what());
  } catch (const std::exception& error) {
    log_warning("rpc: a message of " + peer().str() + " could not be received: " + error.what());
    end(std::string("its message could not be received: ") + error.what());
  }
  handing_out_.store({}, std::memory_order_relaxed);
  return Got::kEnd;
}

void StreamLink::hand_out(const std::shared_ptr<Link>& self, Receiver::Message& message) {
  if (lost()) return;  // a handler has closed it
  const FrameHead& head = message.head;
  if (head.kind == MessageKind::kTaken) return taken(head.call);
  if (head.kind == kHello || head.kind == kReady) throw BadFrame("it said twice who it is");
  Incoming incoming;
  incoming.head = {head.kind, head.call, nullptr, head.references != 0};
  incoming.body = message.body;
  incoming.tensors = std::move(message.tensors);
  incoming.pending = head.ticket;
  if (std::any_of(message.places.begin(), message.places.end(),
                  [](const TensorPlace& place) { return !place.device.is_cpu(); }))
    for (const TensorPlace& place : message.places) incoming.devices.push_back(place.device);
  if (head.ticket != 0) {
    if (!introduction_.this_end_reads)
      throw BadFrame("it names tensors by their address, which this process cannot read");
    std::vector<Named> named;
    for (size_t i = 0; i < message.places.size(); ++i)
      if (message.places[i].address != 0) named.push_back({i, message.places[i]});
    MutexLock lock(pending_mutex_);
    if (!pending_.emplace(head.ticket, std::move(named)).second)
      throw BadFrame("it offers the same tensors twice");
  }
  context_->handlers.received(self, incoming);
}

void StreamLink::fetch(Incoming& message) {
  std::vector<Named> named;
  {
    MutexLock lock(pending_mutex_);
    const auto found = pending_.find(message.pending);
    if (found != pending_.end()) {
      named = std::move(found->second);
      pending_.erase(found);
    }
  }
  const auto fail = [this](const std::string& why) {
    throw PeerLost("rpc: " + peer().str() + " sent tensors that can no longer be read: " + why, -1);
  };
  if (ended()) fail(why_it_ended());
  int error = named.empty() ? EINVAL : 0;
  for (const Named& one : named) {
    at::Tensor tensor = context_->memory->tensor(one.row.dtype, one.row.sizes, one.row.bytes);
    if (!read_process_by_many(context_->reactor, introduction_.process.pid, introduction_.proof,
                              one.row.address, tensor.unsafeGetTensorImpl()->mutable_data(),
                              one.row.bytes)) {
      error = errno != 0 ? errno : ESRCH;
      break;
    }
    message.tensors[one.place] = std::move(tensor);
  }
  // A process that frees its memory early ends the link first, and a later process gets its number
  // only after it has ended: if neither has ended now, the bytes that were read are those that were
  // sent.
  if (ended()) fail(why_it_ended());
  send_taken(message.pending);
  message.pending = 0;
  if (error != 0) fail(std::strerror(error));
}

void StreamLink::drop(uint64_t pending) noexcept {
  {
    MutexLock lock(pending_mutex_);
    if (pending_.erase(pending) == 0) return;
  }
  send_taken(pending);
}

bool StreamLink::ended() const {
  if (lost()) return true;
  pollfd now{fd_.get(), POLLRDHUP, 0};
  return ::poll(&now, 1, 0) > 0 || has_ended(introduction_.process);
}

std::string StreamLink::why_it_ended() const {
  if (introduction_.other.host_identity == context_->host_identity && process_is_gone(peer().pid))
    return "its process has ended";
  return "it closed the connection";
}

void StreamLink::end(const std::string& why) {
  {
    MutexLock lock(why_mutex_);
    if (lost()) return;
    why_ = why;
    closed_ = true;
  }
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void StreamLink::close(const std::string& why) {
  end(why);
  say_lost();
}

// Called once, by the reading thread, or by any thread where none reads.
void StreamLink::say_lost() {
  while (lost() && !lost_is_said_.load() && !reading_.exchange(true)) {
    if (!lost_is_said_.exchange(true)) {
      const auto self = shared_from_this();
      context_->reactor.forget(fd_.get());
      context_->gone(self);
      forget_what_waits();
      std::string why;
      {
        MutexLock lock(why_mutex_);
        why = why_;
      }
      context_->handlers.lost(self, why);
    }
    reading_.store(false);
  }
}

void StreamLink::wait_until_quiet() const {
  // If it is closed inside one of its handlers, lost() is called once the handler has returned.
  if (handing_out_.load() == std::this_thread::get_id()) return;
  while (!lost_is_said_.load() || reading_.load())
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace lockstep::inline v0::rpc::internal
