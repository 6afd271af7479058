#include "lockstep/comm/engines/tcp/mesh.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::tcp {
namespace {

// Of an address before the next one is tried.
constexpr auto kHeadStart = std::chrono::milliseconds(300);
constexpr auto kConnectTime = std::chrono::seconds(5);  // for an address to answer
constexpr auto kRetryPause = std::chrono::milliseconds(100);
constexpr auto kLookPause = std::chrono::milliseconds(100);
constexpr int kUserTimeoutMs = 20'000;  // time without acknowledgement until the link is cut
constexpr uint32_t kVersion = 2;

// The connecting rank's greeting once both have proved the secret; the listening rank answers with
// its own.
struct Hello {
  uint32_t version = kVersion;
  uint32_t order = 0x01020304;  // detects the byte order
  int32_t rank = 0;
  int32_t size = 0;
};

// Makes a proof for one rank worthless at another, since two hosts may have equal addresses.
std::string purpose_of(int rank) {
  return "tcp rank " + std::to_string(rank);
}

std::string address_key(int rank) {
  return "tcp/address/" + std::to_string(rank);
}

std::vector<HostPort> parse_addresses(const std::string& text) {
  std::vector<HostPort> all;
  std::istringstream stream(text);
  std::string one;
  while (stream >> one) all.push_back(parse_host_port(one));
  return all;
}

// Sets the options of a connection between ranks.
void prepare(int fd) {
  set_no_delay(fd);
  const int one = 1, idle = 10, interval = 5, probes = 3;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

std::string greeting_of(const MeshOptions& options) {
  const Hello mine{kVersion, Hello{}.order, options.rank, options.size};
  return {reinterpret_cast<const char*>(&mine), sizeof mine};
}

// The rank that says so. `expected`: -1: one above this rank, which connects to lower ones. Throws
// StoreError.
int rank_of(const std::string& greeting, const MeshOptions& options, int expected) {
  Hello theirs;
  std::memcpy(&theirs, greeting.data(), sizeof theirs);
  if (theirs.version != kVersion || theirs.order != Hello{}.order)
    throw StoreError("it is of another version of Lockstep, or another kind of machine");
  if (theirs.size != options.size)
    throw StoreError("it is of a group of " + std::to_string(theirs.size) + " ranks");
  const bool fits = expected < 0 ? theirs.rank > options.rank && theirs.rank < options.size
                                 : theirs.rank == expected;
  if (!fits) throw StoreError("it says that it is rank " + std::to_string(theirs.rank));
  return theirs.rank;
}

// The listening rank's end.
class Welcome final : public wire::Greeting {
 public:
  Welcome(int fd, const MeshOptions& options) : fd_(fd), options_(options) {}
  bool advance() override {
    while (said_.size() < sizeof(Hello)) {
      char bytes[sizeof(Hello)];
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes - said_.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return false;
      if (n <= 0) throw PeerLost("it has left", -1);  // it found a quicker address
      said_.append(bytes, static_cast<size_t>(n));
    }
    rank = rank_of(said_, options_, -1);
    const std::string answer = greeting_of(options_);
    if (::send(fd_, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(answer.size()))
      throw PeerLost("it does not read", -1);
    return true;
  }
  int rank = -1;

 private:
  const int fd_;
  const MeshOptions& options_;
  std::string said_;
};

// A connection to a lower rank that does not belong to the mesh yet.
struct Candidate {
  UniqueFd fd = {};
  std::string peer = {};
  int rank = -1;
  Deadline deadline;
  bool connected = false;
  wire::ClientChallenge challenge;
  std::string out = {};       // bytes to be written
  std::string greeting = {};  // bytes read so far
  bool over = false;          // to be closed
  bool established = false;
};

// A lower rank, to which this one connects.
struct Target {
  int rank = 0;
  std::vector<HostPort> addresses = {};  // empty until the rank has published them
  size_t next = 0;                       // the address to try next
  Deadline next_time;                    // its earliest time
  const void* chosen = nullptr;          // the connection that has received this rank's greeting
  std::string last_error = {};
  bool possible = false;  // one of the addresses tried since the first may answer
};

class Gathering {
 public:
  Gathering(Store& store, const MeshOptions& options, Deadline deadline)
      : store_(store), options_(options), deadline_(deadline), links_(options.size) {}

  std::vector<UniqueFd> run() {
    if (options_.size == 1) return std::move(links_);
    std::vector<UniqueFd> doors = listen();
    if (options_.rank == 0) store_.set("tcp/secret", Secret::generate().text());
    secret_ = Secret::from_text(store_.get("tcp/secret", deadline_));
    listener_.emplace(
        std::move(doors), *secret_,
        wire::Listener::Service{
            .where = "tcp", .purpose = purpose_of(options_.rank), .greets = [this](int fd) {
              return std::make_unique<Welcome>(fd, options_);
            }});
    for (int r = 0; r < options_.rank; ++r) targets_.push_back({r, {}, 0, Deadline::after({})});
    while (missing() > 0) {
      find_targets();
      turn();
      look();
      if (deadline_.expired() && missing() > 0) throw Timeout(late());
    }
    return std::move(links_);
  }

 private:
  int missing() const {
    return static_cast<int>(std::count_if(links_.begin(), links_.end(),
                                          [](const UniqueFd& fd) { return !fd; })) -
           1;
  }

  // A missing rank may have reported in the store that it failed: then this look throws.
  void look() {
    if (!next_look_.expired()) return;
    next_look_ = Deadline::after(kLookPause);
    store_.try_get(address_key(options_.rank));
  }

  std::vector<UniqueFd> listen() {
    std::vector<UniqueFd> doors;
    std::string shown;
    std::string error;
    for (const std::string& address : addresses()) {
      try {
        doors.push_back(listen_tcp({address, 0}));
      } catch (const SystemError& failure) {
        error = failure.what();  // an address that is not set up yet; others may work
        continue;
      }
      shown += (shown.empty() ? "" : " ") + local_address(doors.back().get()).to_string();
    }
    if (doors.empty()) throw Error("tcp: " + error);
    store_.set(address_key(options_.rank), shown);
    return doors;
  }

  std::vector<std::string> addresses() const {
    if (options_.one_host && options_.interface.empty()) return {"127.0.0.1"};
    std::vector<std::string> all = candidate_addresses(interface_addresses(), options_.interface);
    if (all.empty()) throw InvalidArgument("tcp: this host has no address that others could reach");
    return all;
  }

  // Reads the addresses of the lower ranks as they are published, and starts to connect.
  void find_targets() {
    for (Target& target : targets_) {
      if (links_[target.rank]) continue;
      if (target.addresses.empty()) {
        const auto shown = store_.try_get(address_key(target.rank));
        if (!shown) continue;
        target.addresses = parse_addresses(*shown);
        if (target.addresses.empty()) continue;
      }
      if (!target.next_time.expired()) continue;
      if (target.next == target.addresses.size()) target.next = 0;
      if (target.next == 0) target.possible = false;
      connect(target, target.addresses[target.next++]);
      const bool last = target.next == target.addresses.size();
      target.next_time = Deadline::after(last ? std::chrono::milliseconds(kConnectTime)
                                              : std::chrono::milliseconds(kHeadStart));
    }
  }

  void connect(Target& target, const HostPort& address) {
    Candidate candidate{.peer = address.to_string(),
                        .rank = target.rank,
                        .deadline = Deadline::after(kConnectTime),
                        .challenge = {*secret_, purpose_of(target.rank)}};
    sockaddr_storage to{};
    socklen_t size = 0;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&to);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&to);
    if (::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(address.port);
      size = sizeof *v4;
    } else if (::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(address.port);
      size = sizeof *v6;
    } else {
      throw StoreError("rank " + std::to_string(target.rank) + " shows the address '" +
                       address.to_string() + "', which is not numeric");
    }
    candidate.fd.reset(::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!candidate.fd) throw system_error("socket", errno);
    if (::connect(candidate.fd.get(), reinterpret_cast<sockaddr*>(&to), size) != 0 &&
        errno != EINPROGRESS) {
      const int error = errno;
      failed(target, address.to_string(), std::strerror(error));
      target.possible |= may_connect_later(address, error);
      const bool last = target.next == target.addresses.size();
      if (last && !target.possible) throw connect_error(address, error);
      return;
    }
    target.possible = true;
    candidate.out = candidate.challenge.hello();
    candidates_.push_back(std::move(candidate));
  }

  void failed(Target& target, const std::string& address, const std::string& reason) {
    target.last_error = address + ": " + reason;
    // The next address follows soon; after a pause it starts with the first one again.
    const bool again = target.next == target.addresses.size();
    target.next_time = Deadline::after(again ? kRetryPause : std::chrono::milliseconds(0));
  }

  void turn() {
    std::vector<pollfd> fds{{listener_->fd(), POLLIN, 0}};
    for (const Candidate& c : candidates_) {
      const bool writes = !c.connected || !c.out.empty();
      fds.push_back({c.fd.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    // The store is checked now and then for addresses of ranks that arrive later.
    ::poll(fds.data(), fds.size(), deadline_.poll_ms(unknown() ? 5 : 50));
    size_t i = 1;
    for (Candidate& c : candidates_) {
      const short events = fds[i++].revents;
      if (events != 0) serve(c);
      if (c.over || c.established) continue;
      if (c.deadline.expired()) refuse(c, "it did not answer in time");
    }
    candidates_.remove_if([](const Candidate& c) { return c.over || c.established; });
    if (fds[0].revents != 0) accept();
  }

  bool unknown() const {
    return std::any_of(targets_.begin(), targets_.end(),
                       [](const Target& target) { return target.addresses.empty(); });
  }

  void accept() {
    // A rank that connects again has given up its earlier connection.
    while (auto connection = listener_->next())
      establish(std::move(connection->fd), static_cast<Welcome&>(*connection->greeting).rank);
    // Without unauthenticated peers that could give way, this rank itself has no descriptor left.
    if (listener_->starved() != 0) throw system_error("tcp: accept", listener_->starved());
  }

  // An error here concerns this connection alone.
  void serve(Candidate& c) {
    try {
      if (!c.connected) {
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(c.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) {
          refuse(c, std::strerror(error));
          return;
        }
        c.connected = true;
      }
      while (!c.over && !c.established && step(c)) {
      }
    } catch (const Error& error) {
      refuse(c, error.what());
    }
  }

  // Returns false if the connection has nothing more to read or write now.
  bool step(Candidate& c) {
    if (!c.out.empty()) {
      const ssize_t n = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EINTR) return true;
        if (errno != EAGAIN) refuse(c, std::strerror(errno));
        return false;
      }
      c.out.erase(0, static_cast<size_t>(n));
      return true;
    }
    const bool challenged = c.challenge.done();
    std::string bytes(challenged ? sizeof(Hello) - c.greeting.size() : c.challenge.wanted(), '\0');
    const ssize_t n = ::recv(c.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) {
      refuse(c, n == 0 ? "it closed the connection" : std::strerror(errno));
      return false;
    }
    bytes.resize(static_cast<size_t>(n));
    if (!challenged) {
      c.out = c.challenge.feed(bytes);
      if (c.challenge.done()) {
        Target& target = target_of(c);
        // One connection is enough; another address was quicker.
        if (target.chosen != nullptr || links_[c.rank]) {
          c.over = true;
          return false;
        }
        target.chosen = &c;
        c.out = greeting_of(options_);
      }
      return true;
    }
    c.greeting += bytes;
    if (c.greeting.size() < sizeof(Hello)) return true;
    establish(std::move(c.fd), rank_of(c.greeting, options_, c.rank));
    c.established = true;
    return false;
  }

  // The targets are the ranks below this one, in order.
  Target& target_of(const Candidate& c) { return targets_[static_cast<size_t>(c.rank)]; }

  void establish(UniqueFd fd, int rank) {
    prepare(fd.get());
    links_[rank] = std::move(fd);
  }

  void refuse(Candidate& c, const std::string& reason) {
    c.over = true;
    Target& target = target_of(c);
    if (target.chosen == &c) target.chosen = nullptr;
    failed(target, c.peer, reason);
  }

  std::string late() const {
    std::ostringstream text;
    text << "tcp: rank " << options_.rank << " waited " << deadline_.timeout_seconds()
         << " s; not connected:";
    for (int r = 0; r < options_.size; ++r) {
      if (r == options_.rank || links_[r]) continue;
      text << " rank " << r;
      for (const Target& target : targets_) {
        if (target.rank != r) continue;
        if (target.addresses.empty()) text << " (it has shown no address: was it started?)";
        for (const HostPort& address : target.addresses) text << " " << address.to_string();
        if (!target.last_error.empty()) text << " (" << target.last_error << ")";
      }
      text << ";";
    }
    text << " were all ranks started? If they cannot reach each other by these addresses, choose "
            "another interface with LOCKSTEP_INTERFACE";
    return text.str();
  }

  Store& store_;
  const MeshOptions& options_;
  const Deadline deadline_;
  std::vector<UniqueFd> links_;
  std::optional<Secret> secret_;
  std::optional<wire::Listener> listener_;
  std::vector<Target> targets_;
  std::list<Candidate> candidates_;
  Deadline next_look_ = Deadline::after(kLookPause);
};

}  // namespace

std::vector<UniqueFd> connect_mesh(Store& store, const MeshOptions& options, Deadline deadline) {
  return Gathering(store, options, deadline).run();
}

}  // namespace lockstep::inline v0::tcp
