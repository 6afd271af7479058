#include "lockstep/rpc/internal/directory.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/core/log.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/internal/hello.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

using Json = nlohmann::json;

// An answer that takes longer counts as none.
constexpr double kAnswer = 3;
constexpr int kTries = 3;

Deadline at_most(double seconds, Deadline deadline) {
  return Deadline::after(
      std::min<Deadline::Duration>(Deadline::seconds(seconds).timeout(), deadline.remaining()));
}

struct LocalAddress {
  sockaddr_un address{};
  socklen_t size = 0;
  explicit LocalAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), bytes);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd local_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("socket", errno);
  return fd;
}

// The listener's queue may be full.
UniqueFd connect_local(const std::string& name, Deadline deadline, int& error) {
  const LocalAddress address(name);
  while (true) {
    UniqueFd fd = local_socket();
    const timeval tenth{0, 100'000};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &tenth, sizeof tenth);
    if (::connect(fd.get(), address.get(), address.size) == 0) return fd;
    error = errno;
    if ((error != EAGAIN && error != EINTR) || deadline.expired()) return UniqueFd();
  }
}

// Tries once. `error`: ECONNREFUSED, ETIMEDOUT, ...
UniqueFd connect_tcp_once(const HostPort& to, Deadline deadline, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found) != 0 ||
      !found) {
    error = EINVAL;
    return UniqueFd();
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> freed(found, ::freeaddrinfo);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd && errno == EAFNOSUPPORT) {  // another address may work
    error = errno;
    return fd;
  }
  if (!fd) throw system_error("socket", errno);
  const int ms = std::max(1, deadline.poll_ms(60'000));
  const timeval most{ms / 1000, ms % 1000 * 1000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    error = errno == EINPROGRESS || errno == EAGAIN || errno == EINTR ? ETIMEDOUT : errno;
    return UniqueFd();
  }
  try {
    // A free port of this host may have connected to itself.
    if (local_address(fd.get()).to_string() == peer_address(fd.get()).to_string()) {
      error = ECONNREFUSED;
      return UniqueFd();
    }
  } catch (const SystemError&) {
    // The peer has closed it already, which its user will notice.
  }
  return fd;
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& listen, uint16_t port) {
  std::vector<std::string> addresses;
  if (listen == "0.0.0.0" || listen == "::") {
    const auto all = interface_addresses();
    for (const std::string& address : candidate_addresses(all)) {
      if (listen == "0.0.0.0" && address.find(':') != std::string::npos) continue;
      addresses.push_back(HostPort{address, port}.to_string());
    }
    addresses.push_back(HostPort{listen == "::" ? "::1" : "127.0.0.1", port}.to_string());
  } else {
    addresses.push_back(HostPort{listen, port}.to_string());
  }
  return addresses;
}

std::string Entry::encode() const {
  return Json{{"name", peer.name}, {"incarnation", peer.incarnation}, {"pid", peer.pid},
              {"host", peer.host}, {"identity", host_identity},       {"local", local},
              {"tcp", tcp}}
      .dump();
}

std::optional<Entry> Entry::decode(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto refuse = [] {
    throw StoreError("rpc: what the store has under a process's name was not written by rpc");
  };
  try {
    const Json json = Json::parse(text);
    if (!json.at("incarnation").is_number_unsigned() || !json.at("pid").is_number_unsigned())
      refuse();
    Entry entry;
    json.at("name").get_to(entry.peer.name);
    json.at("incarnation").get_to(entry.peer.incarnation);
    json.at("pid").get_to(entry.peer.pid);
    json.at("host").get_to(entry.peer.host);
    json.at("identity").get_to(entry.host_identity);
    json.at("local").get_to(entry.local);
    json.at("tcp").get_to(entry.tcp);
    return entry;
  } catch (const Json::exception&) {
    refuse();
  }
  return std::nullopt;
}

std::string entry_key(const std::string& name) {
  return "rpc/" + name;
}

std::string look_up(Store& store, const std::string& name, Deadline deadline) {
  return store.peek(entry_key(name), deadline).value_or("");
}

UniqueFd listen_local(std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket", errno);
  name = "lockstep-rpc-" + to_hex(random_bytes(16));
  const LocalAddress address(name);
  if (::bind(fd.get(), address.get(), address.size) != 0 || ::listen(fd.get(), 512) != 0)
    throw system_error("rpc: cannot listen on a Unix socket", errno);
  return fd;
}

Attempt try_connect(const Entry& entry, const std::string& own_host_identity, Deadline deadline) {
  Attempt attempt;
  bool later = false;
  if (entry.host_identity == own_host_identity) {
    int error = 0;
    attempt.fd = connect_local(entry.local, deadline, error);
    attempt.local = true;
    if (attempt.fd) return attempt;
    attempt.error = std::strerror(error);
    attempt.silent = error == EAGAIN;
    attempt.local = false;
    later = true;  // a process of this host that has ended returns with another socket
  }
  // Unix sockets of another network namespace cannot be reached.
  std::optional<SystemError> hopeless;
  for (const std::string& text : entry.tcp) {
    int error = 0;
    const HostPort address = parse_host_port(text);
    attempt.fd = connect_tcp_once(address, at_most(kAnswer, deadline), error);
    if (attempt.fd) {
      prepare_tcp(attempt.fd.get());
      return attempt;
    }
    attempt.error = text + ": " + std::strerror(error);
    if (may_connect_later(address, error)) {
      later = true;
      attempt.silent |= error != ECONNREFUSED;
    } else {
      hopeless = connect_error(address, error);
    }
  }
  if (!later) attempt.hopeless = std::move(hopeless);
  return attempt;
}

void prepare_tcp(int fd) {
  set_no_delay(fd);
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);  // ms
}

namespace {

// Whether the process of the entry lives: a process listens at its address and knows the secret. A
// refused connection may have made room for others, and is tried again.
bool lives(const Entry& entry, const std::string& own_host_identity, const Secret& secret,
           Deadline deadline) {
  for (int tries = 0; tries < kTries; ++tries) {
    const Attempt attempt = try_connect(entry, own_host_identity, deadline);
    if (!attempt.fd) return false;
    try {
      prove(attempt.fd.get(), secret, at_most(kAnswer, deadline));
      return true;
    } catch (const Timeout&) {
      // The Unix socket is its own, so it may be stopped. A TCP port may have gone to another
      // service.
      return attempt.local;
    } catch (const Error&) {
    }
  }
  return false;
}

}  // namespace

void claim_name(Store& store, const Entry& entry, const Secret& secret, Deadline deadline) {
  const std::string key = entry_key(entry.peer.name), mine = entry.encode();
  std::string before = look_up(store, entry.peer.name, deadline);
  while (true) {
    if (const auto other = Entry::decode(before);
        other && lives(*other, entry.host_identity, secret, deadline))
      throw InvalidArgument("rpc: the name " + other->peer.str() +
                            " is taken; give every process a name of its own");
    const std::string after = store.compare_set(key, before, mine);
    if (after == mine) return;
    before = after;
    if (deadline.expired())
      throw Timeout("rpc: '" + entry.peer.name + "' could not be written into the store in time");
  }
}

void give_up_name(Store& store, const Entry& entry) noexcept {
  try {
    // A store that does not answer now, for example because its server is stopped, would keep the
    // process from ending.
    const std::string mine = entry.encode();
    if (look_up(store, entry.peer.name, Deadline::seconds(kFarewell)) == mine)
      store.compare_set(entry_key(entry.peer.name), mine, "");
  } catch (const std::exception& error) {
    log_debug(std::string("rpc: a name stays in the store: ") + error.what());
  }
}

}  // namespace lockstep::inline v0::rpc::internal
