// Listener: accepts connections, and gives out those whose other ends have proved the job's secret.
//
// Any process may connect. Until a peer has proved the secret (challenge.h), it may send only the
// challenge's bytes, has Service::time, and at most Service::most such connections exist: beyond
// that, the oldest one of the most frequent origin is closed. A silent, slow or hostile peer delays
// no other. A service may add a greeting, for which a peer has the rest of its time.
//
// One descriptor stands for the listening sockets, the unauthenticated peers and their time, so
// that a loop around poll(2) or epoll(7) watches that one alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/unauthenticated_peers.h"

namespace lockstep::inline v0::wire {

// The greeting of a peer that has proved the secret. Its connection is given out after it.
class Greeting {
 public:
  virtual ~Greeting() = default;
  // Reads what has arrived, and answers; never waits. Returns whether it is complete.
  // Throws: PeerLost where the peer has left; another Error where it is to be refused.
  virtual bool advance() = 0;
};

// Thread-safety: one thread at a time.
class Listener {
 public:
  struct Service {
    std::string where;    // begins the lines in the log: "rpc"
    std::string purpose;  // of the challenge
    size_t most = 256;    // unauthenticated peers at a time; most_unauthenticated() of it
    std::chrono::nanoseconds time = std::chrono::seconds(10);  // for the challenge and greeting
    // Whether to go on with a connection that was just accepted. Empty: yes.
    std::function<bool(int fd)> admits = {};
    // Begins the greeting over the connection. Empty: there is none.
    std::function<std::unique_ptr<Greeting>(int fd)> greets = {};
    // Says that a peer was refused: it has another secret, sent something else, or was too slow.
    // Empty: writes a warning, for the 1st, the 10th, the 100th ...
    std::function<void(const std::string& line)> says = {};
  };
  // The other end has proved the secret.
  struct Connection {
    UniqueFd fd;       // close-on-exec and non-blocking; over TCP with TCP_NODELAY
    size_t door = 0;   // which of the listening sockets
    std::string peer;  // its origin: an address with its port, or "process 123"
    std::unique_ptr<Greeting> greeting = {};
  };

  // `doors`: listening sockets, non-blocking. Throws SystemError.
  Listener(std::vector<UniqueFd> doors, const Secret& secret, Service service);
  Listener(UniqueFd door, const Secret& secret, Service service);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Readable when next() has something to do; level triggered. Watch it for reading only, and call
  // next() until there is no connection any more.
  int fd() const { return epoll_.get(); }
  int door(size_t index = 0) const { return doors_[index].get(); }
  // The next connection; nullopt: there is none now. Never waits.
  std::optional<Connection> next();
  // Whether a connection waits for which this process has had no descriptor (or memory), although
  // no unauthenticated peer was left to give way; errno at that time, or 0. It is accepted later.
  int starved() const { return starved_; }

  // Peers that were refused because they have another secret or sent something else.
  // Thread-safety: any thread.
  uint64_t refused() const { return refused_.load(); }
  size_t unauthenticated() const { return order_.size(); }

 private:
  struct Peer {
    UniqueFd fd;
    size_t door = 0;
    std::string name;
    ServerChallenge challenge;
    Deadline deadline;
    std::unique_ptr<Greeting> greeting = {};
  };

  void watch(int fd, uint64_t id, uint32_t events, int operation);
  void watch_doors(uint32_t events, int operation);
  void accept(size_t door);
  void admit(UniqueFd fd, size_t door);
  void advance(uint64_t id);
  bool advance(uint64_t id, Peer& peer);
  bool make_room();
  void drop(uint64_t id);
  void keep_time();
  void set_timer();
  void set_timer(Deadline deadline);
  void refuse(const Peer& peer, const std::string& why);

  const Secret secret_;
  const Service service_;
  const std::vector<UniqueFd> doors_;
  UniqueFd epoll_, timer_;
  UnauthenticatedPeers order_;      // of peers_, those that have not proved the secret
  std::map<uint64_t, Peer> peers_;  // the oldest first
  std::deque<Connection> proved_;
  std::optional<Deadline> timed_;  // the time of timer_
  std::optional<Deadline> pause_;  // the doors are not watched until then
  int starved_ = 0;
  uint64_t last_ = 0;
  uint64_t lines_ = 0, lacks_ = 0;
  std::atomic<uint64_t> refused_{0};
};

}  // namespace lockstep::inline v0::wire
