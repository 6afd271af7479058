// One thread serves all clients over epoll with non-blocking sockets: a slow, silent or hostile
// client delays no other. A connection passes the challenge first. Until then it may send only the
// challenge's bytes, has ten seconds, and at most kMaxUnauthenticated such connections exist (one
// of the most frequent origin is closed). Afterwards it may send frames; a client that does not
// read its answers is not read from until it does.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/store/store_service.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/frames.h"
#include "lockstep/wire/unauthenticated_peers.h"

namespace lockstep {
namespace {

constexpr auto kChallengeTimeout = std::chrono::seconds(10);
constexpr size_t kMaxUnauthenticated = 1024;      // at most: wire::most_unauthenticated()
constexpr size_t kMaxBacklog = size_t{64} << 20;  // unread answers of one client, bytes
constexpr size_t kReadBudget = size_t{1} << 20;   // bytes from one client before the others' turn
constexpr int kAcceptedAtATime = 256;             // afterwards it is the clients' turn
// Log lines about unauthenticated peers; later ones are dropped.
constexpr int kMaxRefusalLines = 5;

constexpr uint64_t kListenerId = 0;
constexpr uint64_t kWakeId = 1;

}  // namespace

class TcpStoreServer::Impl {
 public:
  Impl(const HostPort& address, const Secret& secret)
      : secret_(secret),
        listener_(listen_tcp(address)),
        address_(local_address(listener_.get())),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_) throw system_error("epoll_create1", errno);
    if (!wake_) throw system_error("eventfd", errno);
    watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
    watch(wake_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    stop_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  const HostPort& address() const { return address_; }

 private:
  struct Connection {
    UniqueFd fd;
    std::string peer;
    std::optional<wire::ServerChallenge> challenge;  // until it is passed
    Deadline challenge_deadline;
    wire::FrameReader incoming{kMaxStoreFrame};
    std::string outgoing;
    size_t sent = 0;  // bytes of `outgoing` sent
    uint32_t events = EPOLLIN;
    bool dead = false;

    size_t backlog() const { return outgoing.size() - sent; }
  };

  void run() {
    std::array<epoll_event, 64> events;
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), next_timeout_ms());
      if (stop_.load()) return;
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kListenerId) {
          accept_all();
        } else if (const auto it = connections_.find(id); it != connections_.end()) {
          serve(id, it->second, events[static_cast<size_t>(i)].events);
        }
      }
      expire_unauthenticated();
      if (acceptor_.starved() && !acceptor_.paused())
        watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_MOD);
      bury_dead();
    }
  }

  int next_timeout_ms() const {
    int ms = -1;
    if (const auto oldest = unauthenticated_.oldest())
      ms = connections_.at(*oldest).challenge_deadline.poll_ms();
    if (acceptor_.starved()) {
      const int pause = acceptor_.pause().poll_ms();
      ms = ms < 0 ? pause : std::min(ms, pause);
    }
    return ms;
  }

  void watch(int fd, uint64_t id, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
      throw system_error("epoll_ctl", errno);
  }

  void accept_all() {
    for (int i = 0; i < kAcceptedAtATime; ++i) {
      UniqueFd fd = acceptor_.next(listener_.get(), [this] { return drop_unauthenticated(); });
      // New clients wait in the listener's queue.
      if (acceptor_.starved()) watch(listener_.get(), kListenerId, 0, EPOLL_CTL_MOD);
      if (!fd) return;
      try {
        admit(std::move(fd));
      } catch (const std::exception&) {
        return;  // out of memory or epoll watches: the client sees its connection closed
      }
    }
  }

  void admit(UniqueFd fd) {
    set_no_delay(fd.get());
    const uint64_t id = next_id_++;
    watch(fd.get(), id, EPOLLIN, EPOLL_CTL_ADD);
    const HostPort peer = peer_address(fd.get());
    const auto limit = Deadline::after(kChallengeTimeout);
    connections_.emplace(id, Connection{std::move(fd),
                                        peer.to_string(),
                                        wire::ServerChallenge(secret_, "store"),
                                        limit,
                                        wire::FrameReader(kMaxStoreFrame),
                                        {}});
    unauthenticated_.add(id, peer.host);
    if (unauthenticated_.too_many()) drop_unauthenticated();
  }

  bool drop_unauthenticated() {
    const auto id = unauthenticated_.first_to_go();
    if (!id) return false;
    kill(*id, connections_.at(*id));
    bury_dead();
    return true;
  }

  void expire_unauthenticated() {
    while (const auto id = unauthenticated_.oldest()) {
      Connection& connection = connections_.at(*id);
      if (!connection.challenge_deadline.expired()) return;
      refused(connection, "it did not answer the challenge in time");
      kill(*id, connection);
    }
  }

  // An error here concerns this client alone.
  void serve(uint64_t id, Connection& connection, uint32_t events) {
    if (connection.dead) return;
    try {
      if ((events & EPOLLOUT) != 0) flush(id, connection);
      if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(id, connection);
    } catch (const StoreError& error) {
      refused(connection, error.what());
      kill(id, connection);
    } catch (const std::exception&) {
      kill(id, connection);
    }
  }

  void receive(uint64_t id, Connection& connection) {
    size_t budget = kReadBudget;
    while (budget > 0 && !connection.dead && connection.backlog() < kMaxBacklog) {
      const size_t limit = connection.challenge ? connection.challenge->wanted() : buffer_.size();
      const ssize_t n = ::recv(connection.fd.get(), buffer_.data(), std::min(limit, buffer_.size()),
                               MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) {
        kill(id, connection);
        return;
      }
      const std::string_view bytes(buffer_.data(), static_cast<size_t>(n));
      if (connection.challenge) {
        connection.challenge->answer(connection.fd.get(), bytes);
        if (connection.challenge->done()) {
          connection.challenge.reset();
          unauthenticated_.remove(id);
        }
      } else {
        connection.incoming.append(bytes);
        while (const auto body = connection.incoming.next())
          answer(id, decode_store_request(*body));
      }
      budget -= std::min(budget, static_cast<size_t>(n));
    }
  }

  void answer(uint64_t id, const StoreRequest& request) {
    for (const StoreService::Reply& reply : service_.handle(id, request)) {
      const auto it = connections_.find(reply.client);
      if (it != connections_.end() && !it->second.dead)
        send(it->first, it->second, encode(reply.response));
    }
  }

  void send(uint64_t id, Connection& connection, std::string_view bytes) {
    connection.outgoing += bytes;
    flush(id, connection);
  }

  void flush(uint64_t id, Connection& connection) {
    while (connection.backlog() > 0) {
      const ssize_t n = ::send(connection.fd.get(), connection.outgoing.data() + connection.sent,
                               connection.backlog(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) {
        kill(id, connection);
        return;
      }
      connection.sent += static_cast<size_t>(n);
    }
    if (connection.backlog() == 0) {
      connection.outgoing.clear();
      connection.sent = 0;
    } else if (connection.sent > kReadBudget) {
      connection.outgoing.erase(0, connection.sent);
      connection.sent = 0;
    }
    const uint32_t wanted = (connection.backlog() > 0 ? EPOLLOUT : 0u) |
                            (connection.backlog() < kMaxBacklog ? EPOLLIN : 0u);
    if (wanted != connection.events) {
      watch(connection.fd.get(), id, wanted, EPOLL_CTL_MOD);
      connection.events = wanted;
    }
  }

  // Marks the connection; it is removed between events, when no reference to it is held.
  void kill(uint64_t id, Connection& connection) {
    if (connection.dead) return;
    connection.dead = true;
    unauthenticated_.remove(id);
    dead_.push_back(id);
  }

  void bury_dead() {
    for (const uint64_t id : dead_) {
      service_.drop(id);
      connections_.erase(id);
    }
    dead_.clear();
  }

  void refused(const Connection& connection, const std::string& reason) {
    if (refusals_++ >= kMaxRefusalLines) return;
    log_warning("store at " + address_.to_string() + ": closed the connection from " +
                connection.peer + ": " + reason);
  }

  const Secret secret_;
  const UniqueFd listener_;
  const HostPort address_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::atomic<bool> stop_{false};

  // Only the thread uses the members below.
  StoreService service_;
  std::map<uint64_t, Connection> connections_;
  wire::UnauthenticatedPeers unauthenticated_{// Clients that have not passed the challenge.
                                              wire::most_unauthenticated(kMaxUnauthenticated)};
  wire::Acceptor acceptor_{"store at " + address_.to_string()};
  std::vector<uint64_t> dead_;
  uint64_t next_id_ = kWakeId + 1;
  int refusals_ = 0;
  std::array<char, 65536> buffer_;

  std::thread thread_;  // last, because it uses all the others
};

TcpStoreServer::TcpStoreServer(const HostPort& address, const Secret& secret)
    : impl_(std::make_unique<Impl>(address, secret)) {}

TcpStoreServer::~TcpStoreServer() = default;

HostPort TcpStoreServer::address() const {
  return impl_->address();
}

}  // namespace lockstep
