// One thread serves all clients over epoll with non-blocking sockets: a slow, silent or hostile
// client delays no other. A connection passes the challenge first (wire::Listener). Afterwards it
// may send frames; a client that does not read its answers is not read from until it does.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/fork_lock.h"
#include "lockstep/core/log.h"
#include "lockstep/store/store_service.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/wire/channel.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kMaxUnauthenticated = 1024;
constexpr size_t kReadBudget = size_t{1} << 20;  // bytes from one client before the others' turn
constexpr wire::Channel::Service kService{.purpose = "store",
                                          .most = kMaxStoreFrame,
                                          .most_unsent = size_t{64} << 20};  // answers of a client

constexpr int kMaxLines = 5;  // in the log; later ones are dropped

constexpr uint64_t kListenerId = 0;
constexpr uint64_t kWakeId = 1;

wire::Listener listen(const HostPort& address, const Secret& secret) {
  UniqueFd door = listen_tcp(address);
  const std::string where = "store at " + local_address(door.get()).to_string();
  return {std::move(door),
          secret,
          {.where = where, .purpose = std::string(kService.purpose), .most = kMaxUnauthenticated}};
}

}  // namespace

class TcpStoreServer::Impl {
 public:
  Impl(const HostPort& address, const Secret& secret)
      : listener_(listen(address, secret)),
        address_(local_address(listener_.door())),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_) throw system_error("epoll_create1", errno);
    if (!wake_) throw system_error("eventfd", errno);
    watch(listener_.fd(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
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
    wire::Channel channel;
    uint32_t events = EPOLLIN;
  };

  void run() {
    std::array<epoll_event, 64> events;
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
      if (stop_.load()) return;
      const MutexLock working(fork_lock());
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kListenerId) {
          while (auto connection = listener_.next()) admit(std::move(connection->fd));
        } else if (const auto it = connections_.find(id); it != connections_.end()) {
          serve(id, it->second);
        }
      }
      for (const uint64_t id : dead_) {
        service_.drop(id);
        connections_.erase(id);
      }
      dead_.clear();
    }
  }

  void watch(int fd, uint64_t id, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
      throw system_error("epoll_ctl", errno);
  }

  void admit(UniqueFd fd) {
    const uint64_t id = next_id_++;
    try {
      wire::Channel channel(std::move(fd), kService);
      watch(channel.fd(), id, EPOLLIN, EPOLL_CTL_ADD);
      connections_.emplace(id, Connection{std::move(channel)});
    } catch (const std::exception&) {
      // It has left, or memory or epoll watches are short: the client sees its connection closed.
    }
  }

  // An error here concerns this client alone. It is removed between events, when no reference to it
  // is held.
  void serve(uint64_t id, Connection& connection) {
    try {
      connection.channel.pump(
          [&](std::string_view body) { answer(id, decode_store_request(body)); }, kReadBudget);
      look(id, connection);
      return;
    } catch (const StoreError& error) {
      if (lines_++ < kMaxLines)
        log_warning("store at " + address_.to_string() + ": closed the connection from " +
                    connection.channel.peer().to_string() + ": " + error.what());
    } catch (const std::exception&) {
    }
    dead_.push_back(id);
  }

  void answer(uint64_t id, const StoreRequest& request) {
    for (const StoreService::Reply& reply : service_.handle(id, request)) {
      const auto it = connections_.find(reply.client);
      if (it == connections_.end()) continue;
      it->second.channel.send_frame(encode(reply.response));
      look(it->first, it->second);
    }
  }

  void look(uint64_t id, Connection& connection) {
    const auto wanted = static_cast<uint32_t>(connection.channel.events());
    if (wanted == connection.events) return;
    watch(connection.channel.fd(), id, wanted, EPOLL_CTL_MOD);
    connection.events = wanted;
  }

  wire::Listener listener_;  // used by the thread alone
  const HostPort address_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::atomic<bool> stop_{false};

  // Only the thread uses the members below.
  StoreService service_;
  std::map<uint64_t, Connection> connections_;
  std::vector<uint64_t> dead_;
  uint64_t next_id_ = kWakeId + 1;
  int lines_ = 0;

  std::thread thread_;  // last, because it uses all the others
};

TcpStoreServer::TcpStoreServer(const HostPort& address, const Secret& secret)
    : impl_(std::make_unique<Impl>(address, secret)) {}

TcpStoreServer::~TcpStoreServer() = default;

HostPort TcpStoreServer::address() const {
  return impl_->address();
}

}  // namespace lockstep::inline v0
