#include "lockstep/core/net.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"

namespace lockstep::inline v0 {
namespace {

struct SockAddr {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

bool make_numeric(const std::string& host, uint16_t port, SockAddr& out) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.size = sizeof(sockaddr_in);
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    out.size = sizeof(sockaddr_in6);
    return true;
  }
  return false;
}

SockAddr socket_address(const HostPort& address) {
  SockAddr result;
  if (!make_numeric(resolve(address.host), address.port, result)) {
    throw InvalidArgument("not a numeric address: " + address.host);
  }
  return result;
}

HostPort host_port(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = {};
  HostPort result;
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    result.port = ntohs(v6.sin6_port);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    result.port = ntohs(v4.sin_port);
  }
  result.host = text;
  return result;
}

// The inode of the listening socket on `port`, from /proc/net/tcp and tcp6; "" if there is none.
std::string listener_inode(uint16_t port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmit, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmit >> uid >>
          timeout >> inode;
      const auto colon = local.rfind(':');
      if (state != "0A" || colon == std::string::npos) continue;
      if (std::stoul(local.substr(colon + 1), nullptr, 16) == port) return inode;
    }
  }
  return "";
}

// Makes one attempt. Returns an empty descriptor and sets `error` if the server is not there (yet).
UniqueFd try_connect(SockAddr target, Deadline deadline, int& error) {
  UniqueFd fd(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket", errno);
  if (::connect(fd.get(), target.get(), target.size) != 0) {
    error = errno;
    if (error != EINPROGRESS) return UniqueFd();
    pollfd waiting{fd.get(), POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_ms(2000));
    if (ready <= 0) {
      error = ETIMEDOUT;
      return UniqueFd();
    }
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return UniqueFd();
  }
  // A connect to a free ephemeral port of this very host can meet itself (simultaneous open); no
  // server is there then.
  sockaddr_storage self{}, peer{};
  socklen_t self_size = sizeof self, peer_size = sizeof peer;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&self), &self_size);
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_size);
  if (self_size == peer_size && std::memcmp(&self, &peer, self_size) == 0) {
    error = ECONNREFUSED;
    return UniqueFd();
  }
  set_no_delay(fd.get());
  return fd;
}

}  // namespace

std::string HostPort::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

HostPort parse_host_port(const std::string& text) {
  const auto colon = text.rfind(':');
  std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : parse_int(std::string_view(text).substr(colon + 1), 0, 65535);
  if (host.empty() || !port) {
    throw InvalidArgument("'" + text + "' is not an address: expected host:port, port 0 to 65535");
  }
  return {host, static_cast<uint16_t>(*port)};
}

std::string resolve(const std::string& host) {
  SockAddr numeric;
  if (make_numeric(host, 0, numeric)) return host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0 || found == nullptr) {
    throw InvalidArgument("host '" + host + "' does not resolve (" + ::gai_strerror(error) +
                          "); give a numeric address, or add the name to /etc/hosts");
  }
  // IPv4 comes first: "localhost" must denote the same address on every rank.
  const addrinfo* best = found;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_family == AF_INET) {
      best = a;
      break;
    }
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, best->ai_addr, best->ai_addrlen);
  ::freeaddrinfo(found);
  return host_port(storage).host;
}

UniqueFd listen_tcp(const HostPort& address, int backlog) {
  SockAddr target = socket_address(address);
  UniqueFd fd(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket", errno);
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(fd.get(), target.get(), target.size) != 0 || ::listen(fd.get(), backlog) != 0) {
    const int error = errno;
    std::string what = "cannot listen on " + address.to_string();
    if (error == EADDRINUSE) {
      what += port_owner(address.port) + "; choose another port, or 0 for a free one";
    }
    throw system_error(what, error);
  }
  return fd;
}

std::string port_owner(uint16_t port) {
  const std::string inode = listener_inode(port);
  if (inode.empty()) return "";
  const std::string wanted = "socket:[" + inode + "]";
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return "";
  std::string owner;
  while (const dirent* entry = ::readdir(proc)) {
    if (!parse_int(entry->d_name, 1)) continue;
    const std::string base = std::string("/proc/") + entry->d_name;
    DIR* fds = ::opendir((base + "/fd").c_str());
    if (fds == nullptr) continue;
    while (const dirent* fd = ::readdir(fds)) {
      char target[64] = {};
      const std::string link = base + "/fd/" + fd->d_name;
      if (::readlink(link.c_str(), target, sizeof target - 1) > 0 && wanted == target) {
        std::string name;
        std::getline(std::ifstream(base + "/comm") >> std::ws, name);
        owner = std::string(" (held by process ") + entry->d_name +
                (name.empty() ? "" : ", " + name) + ")";
        break;
      }
    }
    ::closedir(fds);
    if (!owner.empty()) break;
  }
  ::closedir(proc);
  return owner;
}

HostPort local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    throw system_error("getsockname", errno);
  }
  return host_port(storage);
}

HostPort peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    throw system_error("getpeername", errno);
  }
  return host_port(storage);
}

void set_no_delay(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool may_connect_later(const HostPort& address, int error) {
  switch (error) {
    case EINVAL:
    case EAFNOSUPPORT:
    case EACCES:
    case EPERM:
      return false;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
      return !is_loopback(address.host);
    default:
      return true;
  }
}

SystemError connect_error(const HostPort& address, int error) {
  const bool no_network = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
  if (!no_network || !is_loopback(address.host))
    return system_error("cannot connect to " + address.to_string(), error);
  return SystemError(address.host + " cannot be reached (" + std::strerror(error) +
                         "); is the interface lo up? \"ip link set lo up\" sets it up",
                     error);
}

UniqueFd connect_tcp(const HostPort& address, Deadline deadline) {
  const SockAddr target = socket_address(address);
  auto pause = std::chrono::milliseconds(1);
  int error = ETIMEDOUT;
  do {
    if (UniqueFd fd = try_connect(target, deadline, error)) return fd;
    if (!may_connect_later({host_port(target.storage).host, address.port}, error))
      throw connect_error(address, error);
    std::this_thread::sleep_for(std::min<Deadline::Duration>(pause, deadline.remaining()));
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  } while (!deadline.expired());
  std::ostringstream what;
  what << "no server at " << address.to_string() << " within " << deadline.timeout_seconds()
       << " s (" << std::strerror(error)
       << "); is rank 0 or the launcher running there, and the port open?";
  throw Timeout(what.str());
}

void wait_ready(int fd, short events, Deadline deadline, const char* what) {
  while (true) {
    pollfd waiting{fd, events, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_ms(1000));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw system_error("poll", errno);
    if (deadline.expired()) {
      std::ostringstream text;
      text << what << ": no answer within " << deadline.timeout_seconds() << " s";
      throw Timeout(text.str());
    }
  }
}

void read_exact(int fd, void* data, size_t size, Deadline deadline) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::recv(fd, bytes, size, MSG_DONTWAIT);
    if (n > 0) {
      bytes += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0 || errno == ECONNRESET) {
      throw PeerLost("the other end closed the connection", -1);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_ready(fd, POLLIN, deadline, "reading from a peer");
    } else if (errno != EINTR) {
      throw system_error("recv", errno);
    }
  }
}

void write_exact(int fd, const void* data, size_t size, Deadline deadline) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      bytes += n;
      size -= static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_ready(fd, POLLOUT, deadline, "writing to a peer");
    } else if (errno == EPIPE || errno == ECONNRESET) {
      throw PeerLost("the other end closed the connection", -1);
    } else if (errno != EINTR) {
      throw system_error("send", errno);
    }
  }
}

}  // namespace lockstep::inline v0
