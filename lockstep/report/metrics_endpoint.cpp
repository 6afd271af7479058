#include "lockstep/report/metrics_endpoint.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/net.h"
#include "lockstep/report/http_answer.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// `what` begins the message.
UniqueFd listen_on_loopback(const std::string& what, uint16_t port) {
  try {
    return listen_tcp({kLoopback, port}, 16);
  } catch (const SystemError& error) {
    if (error.errnum() == EADDRINUSE)
      throw InvalidArgument(what + ": port " + std::to_string(port) + " of " + kLoopback +
                            " is taken" + port_owner(port) + "; give another");
    if (error.errnum() == EACCES)
      throw InvalidArgument(what + ": this user may not listen on port " + std::to_string(port) +
                            "; give one above 1023");
    throw;
  }
}

}  // namespace

// What the thread does.
class MetricsEndpoint::Server {
 public:
  explicit Server(const MetricsEndpoint& endpoint) : endpoint_(endpoint) {}

  void run() {
    while (true) {
      std::vector<pollfd> watched{{endpoint_.stop_.get(), POLLIN, 0},
                                  {endpoint_.door_.get(), POLLIN, 0}};
      if (pause_ && pause_->expired()) pause_.reset();
      if (pause_) watched[1].events = 0;
      int wait_ms = pause_ ? pause_->poll_ms() : -1;
      for (const Connection& connection : connections_) {
        const bool sends = !connection.answer.empty() && !connection.answered;
        watched.push_back({connection.fd.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
        const int left = connection.deadline.poll_ms();
        if (wait_ms < 0 || left < wait_ms) wait_ms = left;
      }
      if (::poll(watched.data(), watched.size(), wait_ms) < 0 && errno != EINTR) return;
      if (watched[0].revents != 0) return;
      for (size_t i = 0; i < connections_.size(); ++i) {
        Connection& connection = connections_[i];
        if (watched[i + 2].revents != 0) advance(connection);
        connection.over = connection.over || connection.deadline.expired();
      }
      std::erase_if(connections_, [](const Connection& connection) { return connection.over; });
      if (watched[1].revents != 0) accept();
    }
  }

 private:
  struct Connection {
    UniqueFd fd;
    Deadline deadline;
    std::string received = {};
    std::string answer = {};
    size_t sent = 0;
    bool ended = false;     // the client sends nothing more
    bool answered = false;  // the end of the client's bytes is left, lest it lose the answer
    bool over = false;
  };

  void accept() {
    while (true) {
      UniqueFd fd(::accept4(endpoint_.door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) {
        // Without descriptors or memory the client still waits at the door: not to turn round it.
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
          pause_ = Deadline::after(std::chrono::milliseconds(100));
        return;
      }
      if (connections_.size() >= endpoint_.options_.connections) connections_.pop_front();
      connections_.push_back(
          {.fd = std::move(fd), .deadline = Deadline::after(endpoint_.options_.time)});
    }
  }

  void advance(Connection& connection) const {
    if (connection.answer.empty() || connection.answered) receive(connection);
    if (connection.over) return;
    if (connection.answered) {
      connection.received.clear();
      connection.over = connection.ended;
      return;
    }
    if (connection.answer.empty()) {
      auto answer = http_answer(connection.received, [this] { return endpoint_.text_(); });
      if (!answer) {
        connection.over = connection.ended;
        return;
      }
      connection.answer = std::move(*answer);
    }
    send(connection);
  }

  void receive(Connection& connection) const {
    std::array<char, 2048> bytes{};
    while (connection.received.size() <= kMostRequestBytes) {
      const ssize_t got = ::recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got > 0) {
        connection.received.append(bytes.data(), static_cast<size_t>(got));
        continue;
      }
      connection.ended = got == 0;
      connection.over = got < 0 && errno != EAGAIN;
      return;
    }
  }

  void send(Connection& connection) const {
    while (connection.sent < connection.answer.size()) {
      const ssize_t gone = ::send(connection.fd.get(), connection.answer.data() + connection.sent,
                                  connection.answer.size() - connection.sent, MSG_NOSIGNAL);
      if (gone < 0 && errno == EINTR) continue;
      if (gone < 0) {
        connection.over = errno != EAGAIN;
        return;
      }
      connection.sent += static_cast<size_t>(gone);
    }
    connection.answered = true;
    ::shutdown(connection.fd.get(), SHUT_WR);
  }

  const MetricsEndpoint& endpoint_;
  std::deque<Connection> connections_;  // the oldest first
  std::optional<Deadline> pause_;       // the door is not watched until then
};

MetricsEndpoint::MetricsEndpoint(uint16_t port, std::function<std::string()> text,
                                 MetricsEndpointOptions options)
    : door_(listen_on_loopback("/metrics", port)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(local_address(door_.get()).port),
      text_(std::move(text)),
      options_(options) {
  if (!stop_) throw system_error("eventfd", errno);
  if (!text_ || options_.connections < 1 || options_.time.count() < 1)
    throw InvalidArgument("MetricsEndpoint: it needs a text, a connection and some time");
  thread_ = std::thread([this] {
    try {
      Server(*this).run();
    } catch (const std::exception& error) {  // out of memory: the run goes on without it
      log_warning(std::string("/metrics has ended: ") + error.what());
    }
  });
}

MetricsEndpoint::~MetricsEndpoint() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void check_metrics_ports(const std::string& what, int64_t port, int64_t count) {
  if (port < 1 || port + count - 1 > 65535)
    throw InvalidArgument(what + " is " + std::to_string(port) + "; give 1 to " +
                          std::to_string(65535 - count + 1));
  for (int64_t each = port; each < port + count; ++each)
    (void)listen_on_loopback(what + " is " + std::to_string(port), static_cast<uint16_t>(each));
}

}  // namespace lockstep::inline v0
