#include "lockstep/bench/rpc_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::bench {
namespace {

// The message to the server, and with the result in `a` the answer.
struct Ping {
  int64_t a = 0;
  int64_t b = 0;
  int64_t elements = 0;  // elements of the tensor that follows
  double found = 0;      // the server's sum of some of them
};
static_assert(sizeof(Ping) == 32);

// Moves all bytes, blocking; false if the other end has gone.
bool read_whole(int fd, void* to, size_t bytes) {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = ::recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool write_whole(int fd, const void* from, size_t bytes) {
  for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

void make_blocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

// An abstract name leaves nothing behind in the file system.
sockaddr_un unix_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy_n(name.begin(), std::min(name.size(), sizeof address.sun_path - 1),
              address.sun_path + 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("a Unix socket", errno);
  return fd;
}

double look_into(const std::vector<float>& tensor) {
  return static_cast<double>(tensor.front()) + static_cast<double>(tensor[tensor.size() / 2]) +
         static_cast<double>(tensor.back());
}

class SocketServer final : public RpcServer {
 public:
  explicit SocketServer(const RpcEndpoint& place) {
    if (place.variant == "unix") {
      address_ = "lockstep-bench-" + std::to_string(::getpid());
      socklen_t length = 0;
      const sockaddr_un name = unix_address(address_, length);
      listener_ = unix_socket();
      if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
          ::listen(listener_.get(), 1) != 0)
        throw system_error("listening on a Unix socket", errno);
    } else {
      listener_ = listen_tcp({place.listen.empty() ? "127.0.0.1" : place.listen, 0});
      make_blocking(listener_.get());
      address_ = local_address(listener_.get()).to_string();
    }
    thread_ = std::thread([this] { serve(); });
  }
  ~SocketServer() override {
    ::shutdown(listener_.get(), SHUT_RDWR);  // wakes accept; the client has left
    thread_.join();
  }
  std::string address() const override { return address_; }

 private:
  void serve() {
    const UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    if (address_.find(':') != std::string::npos) set_no_delay(fd.get());
    std::vector<float> tensor;
    for (Ping ping; read_whole(fd.get(), &ping, sizeof ping);) {
      if (ping.elements > 0) {
        tensor.resize(static_cast<size_t>(ping.elements));
        if (!read_whole(fd.get(), tensor.data(), tensor.size() * sizeof(float))) return;
        ping.found = look_into(tensor);
      }
      ping.a += ping.b;
      if (!write_whole(fd.get(), &ping, sizeof ping)) return;
    }
  }

  std::string address_;
  UniqueFd listener_;
  std::thread thread_;
};

class LargeCaller : public RpcCaller {
 public:
  int64_t add(int64_t, int64_t) override { throw InvalidArgument("memcpy calls no function"); }
  int64_t add_many(int64_t, int64_t) override {
    throw InvalidArgument("bare sockets have no calls in flight");
  }
  void prepare(int64_t elements) override { tensor_.resize(static_cast<size_t>(elements)); }
  void fill(float value) override { std::fill(tensor_.begin(), tensor_.end(), value); }

 protected:
  std::vector<float> tensor_;
};

class SocketCaller final : public LargeCaller {
 public:
  SocketCaller(const RpcEndpoint& place, const std::string& address) {
    if (place.variant == "unix") {
      socklen_t length = 0;
      const sockaddr_un name = unix_address(address, length);
      fd_ = unix_socket();
      if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0)
        throw system_error("connecting to a Unix socket", errno);
    } else {
      fd_ = connect_tcp(parse_host_port(address), Deadline::seconds(30));
      make_blocking(fd_.get());
    }
  }

  int64_t add(int64_t a, int64_t b) override { return exchange({.a = a, .b = b}, {}).a; }
  double send() override {
    return exchange({.elements = static_cast<int64_t>(tensor_.size())}, tensor_).found;
  }

 private:
  Ping exchange(Ping ping, const std::vector<float>& tensor) {
    if (!write_whole(fd_.get(), &ping, sizeof ping) ||
        !write_whole(fd_.get(), tensor.data(), tensor.size() * sizeof(float)) ||
        !read_whole(fd_.get(), &ping, sizeof ping))
      throw PeerLost("the server of the socket is gone", -1);
    return ping;
  }

  UniqueFd fd_;
};

class MemcpyCaller final : public LargeCaller {
 public:
  void prepare(int64_t elements) override {
    LargeCaller::prepare(elements);
    copy_.resize(static_cast<size_t>(elements));
  }
  double send() override {
    std::memcpy(copy_.data(), tensor_.data(), tensor_.size() * sizeof(float));
    return look_into(copy_);
  }

 private:
  std::vector<float> copy_;
};

}  // namespace

RpcSides socket_sides() {
  return {.serve = [](const RpcEndpoint& place) { return std::make_unique<SocketServer>(place); },
          .connect =
              [](const RpcEndpoint& place, const std::string& address) {
                return std::make_unique<SocketCaller>(place, address);
              }};
}

RpcSides memcpy_sides() {
  return {.serve = {}, .connect = [](const RpcEndpoint&, const std::string&) {
            return std::make_unique<MemcpyCaller>();
          }};
}

}  // namespace lockstep::inline v0::bench
