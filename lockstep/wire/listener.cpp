#include "lockstep/wire/listener.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {
namespace {

constexpr int kTurns = 4;             // batches of events in one call
constexpr int kAcceptedAtATime = 64;  // afterwards it is the turn of those that were accepted
constexpr auto kPause = std::chrono::milliseconds(100);  // without a descriptor for a connection

bool is_lack(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// The number of a watched descriptor: a door's, the timer's, or that of a peer.
constexpr uint64_t kFirstDoor = UINT64_MAX / 2;
constexpr uint64_t kTimer = UINT64_MAX;

bool is_process(const std::string& source) {
  return source.starts_with("process ");
}

// The origin with its port, for the log.
std::string name_of(int fd, const std::string& source) {
  try {
    return is_process(source) ? source : peer_address(fd).to_string();
  } catch (const SystemError&) {
    return "?";  // it has left
  }
}

std::vector<UniqueFd> one(UniqueFd door) {
  std::vector<UniqueFd> doors;
  doors.push_back(std::move(door));
  return doors;
}

}  // namespace

Listener::Listener(UniqueFd door, const Secret& secret, Service service)
    : Listener(one(std::move(door)), secret, std::move(service)) {}

Listener::Listener(std::vector<UniqueFd> doors, const Secret& secret, Service service)
    : secret_(secret),
      service_(std::move(service)),
      doors_(std::move(doors)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      order_(most_unauthenticated(service_.most)) {
  if (!epoll_) throw system_error("epoll_create1", errno);
  if (!timer_) throw system_error("timerfd_create", errno);
  watch(timer_.get(), kTimer, EPOLLIN, EPOLL_CTL_ADD);
  watch_doors(EPOLLIN, EPOLL_CTL_ADD);
}

void Listener::watch_doors(uint32_t events, int operation) {
  for (size_t i = 0; i < doors_.size(); ++i)
    watch(doors_[i].get(), kFirstDoor + i, events, operation);
}

void Listener::watch(int fd, uint64_t id, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw system_error("epoll_ctl", errno);
}

std::optional<Listener::Connection> Listener::next() {
  std::array<epoll_event, 64> events;
  // Under a flood of peers that prove nothing it is the caller's other descriptors' turn meanwhile.
  for (int turn = 0; turn < kTurns && proved_.empty(); ++turn) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kTimer)
        keep_time();
      else if (id >= kFirstDoor)
        accept(id - kFirstDoor);
      else
        advance(id);
    }
    set_timer();
  }
  if (proved_.empty()) return std::nullopt;
  Connection first = std::move(proved_.front());
  proved_.pop_front();
  if (!proved_.empty()) set_timer(Deadline::after(Deadline::Duration(0)));  // for who polls fd()
  return first;
}

void Listener::accept(size_t door) {
  for (int i = 0; i < kAcceptedAtATime; ++i) {
    UniqueFd fd(::accept4(doors_[door].get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    if (!fd && (error == EINTR || error == ECONNABORTED)) continue;
    if (!fd) {
      if (!is_lack(error)) return;
      // Linux also says so for an empty queue.
      pollfd queue{doors_[door].get(), POLLIN, 0};
      if (::poll(&queue, 1, 0) <= 0) return;
      if (worth_a_line(++lacks_))
        log_warning(service_.where + ": a connection waits, since it cannot be accepted (number " +
                    std::to_string(lacks_) + "): " + std::strerror(error) +
                    (error == EMFILE ? "; raise this process's limit (ulimit -n)" : ""));
      // Other threads of this process may take the freed descriptor.
      if (make_room()) continue;
      // The door would stay ready, and there is no event for free descriptors.
      starved_ = error;
      pause_ = Deadline::after(kPause);
      return watch_doors(0, EPOLL_CTL_MOD);
    }
    starved_ = 0;
    try {
      admit(std::move(fd), door);
    } catch (const std::exception&) {
      return;  // out of memory or epoll watches: the peer sees its connection closed
    }
  }
}

void Listener::admit(UniqueFd fd, size_t door) {
  if (service_.admits && !service_.admits(fd.get())) return;
  const std::string source = source_of(fd.get());
  if (!is_process(source)) set_no_delay(fd.get());
  const int number = fd.get();
  const uint64_t id = ++last_;
  peers_.emplace(id,
                 Peer{std::move(fd), door, name_of(number, source),
                      ServerChallenge(secret_, service_.purpose), Deadline::after(service_.time)});
  order_.add(id, source);
  try {
    watch(number, id, EPOLLIN, EPOLL_CTL_ADD);
  } catch (...) {
    drop(id);
    throw;
  }
  if (order_.too_many()) make_room();
}

void Listener::advance(uint64_t id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;  // it has given way
  Peer& peer = found->second;
  try {
    if (!advance(id, peer)) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.fd.get(), nullptr);
    proved_.push_back(
        {std::move(peer.fd), peer.door, std::move(peer.name), std::move(peer.greeting)});
  } catch (const PeerLost&) {
    // A port scanner, or a process that only looked.
  } catch (const Error& error) {
    ++refused_;
    refuse(peer, error.what());
  }
  drop(id);
}

bool Listener::advance(uint64_t id, Peer& peer) {
  std::array<char, 256> bytes;
  while (!peer.challenge.done()) {
    // Not one byte more: what follows is for the user of the connection.
    const ssize_t n = ::recv(peer.fd.get(), bytes.data(),
                             std::min(peer.challenge.wanted(), bytes.size()), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) throw PeerLost("it has left", -1);
    peer.challenge.answer(peer.fd.get(), {bytes.data(), static_cast<size_t>(n)});
    if (!peer.challenge.done()) continue;
    order_.remove(id);
    if (service_.greets) peer.greeting = service_.greets(peer.fd.get());
  }
  return !peer.greeting || peer.greeting->advance();
}

void Listener::drop(uint64_t id) {
  order_.remove(id);
  peers_.erase(id);
}

bool Listener::make_room() {
  const auto first = order_.first_to_go();
  if (first) drop(*first);
  return first.has_value();
}

void Listener::refuse(const Peer& peer, const std::string& why) {
  const std::string line = "closed the connection from " + peer.name + ": " + why;
  if (service_.says) return service_.says(line);
  if (worth_a_line(++lines_))
    log_warning(service_.where + ": " + line +
                (lines_ > 1 ? " (number " + std::to_string(lines_) + ")" : ""));
}

void Listener::keep_time() {
  uint64_t times = 0;
  [[maybe_unused]] const ssize_t n = ::read(timer_.get(), &times, sizeof times);
  timed_.reset();
  while (!peers_.empty() && peers_.begin()->second.deadline.expired()) {
    const auto& [id, peer] = *peers_.begin();
    refuse(peer, "it did not prove the secret, or say who it is, in time");
    drop(id);
  }
  if (!pause_ || !pause_->expired()) return;
  pause_.reset();
  starved_ = 0;
  watch_doors(EPOLLIN, EPOLL_CTL_MOD);
}

// An earlier time is left as it is: most peers pass the challenge long before.
void Listener::set_timer() {
  std::optional<Deadline> next;
  if (!peers_.empty()) next = peers_.begin()->second.deadline;
  if (pause_ && (!next || pause_->time() < next->time())) next = pause_;
  if (next && (!timed_ || next->time() < timed_->time())) set_timer(*next);
}

void Listener::set_timer(Deadline deadline) {
  timed_ = deadline;
  const auto left =
      std::max<Deadline::Duration>(deadline.remaining(), Deadline::Duration(1));  // 0 would stop it
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  itimerspec when{};
  when.it_value.tv_sec = seconds.count();
  when.it_value.tv_nsec = (left - seconds).count();
  if (::timerfd_settime(timer_.get(), 0, &when, nullptr) != 0)
    throw system_error("timerfd_settime", errno);
}

}  // namespace lockstep::inline v0::wire
