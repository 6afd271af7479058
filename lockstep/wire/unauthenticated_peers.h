// UnauthenticatedPeers: connections whose other ends have not proved the job's secret yet. Every
// listener uses it to limit their number, to choose which one to close, and to handle a lack of
// descriptors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::wire {

// The origin of a connection: "process 123" where the kernel knows (a Unix socket), the address
// without its port over TCP, "" where neither is known any more.
std::string source_of(int fd);

// At most `wanted`, and at most half of the descriptors that this process may have (RLIMIT_NOFILE):
// the other half is for peers that have proved the secret.
size_t most_unauthenticated(size_t wanted);

// Whether to write the `count`-th of many similar lines: the 1st, the 10th, the 100th ...
// Unauthenticated peers must not fill the log.
bool worth_a_line(uint64_t count);

// Chooses the peer to close. A storm comes from few origins, so it is the oldest peer of the most
// frequent origin: a peer from elsewhere has the time it needs. Pure.
// Thread-safety: one thread at a time.
class UnauthenticatedPeers {
 public:
  explicit UnauthenticatedPeers(size_t most) : most_(most) {}

  // Later ones have larger numbers.
  void add(uint64_t id, const std::string& source);
  // Removes a peer that has proved the secret, or is closed. Does nothing where it is unknown.
  void remove(uint64_t id);
  bool too_many() const { return sources_.size() > most_; }
  // The peer to close first; nullopt where there are none. It stays until it is removed.
  std::optional<uint64_t> first_to_go() const;
  std::optional<uint64_t> oldest() const;
  size_t size() const { return sources_.size(); }

 private:
  size_t most_;
  std::map<uint64_t, std::string> sources_;
  std::map<std::string, std::set<uint64_t>> of_source_;
};

// Accepts connections of a polled listener.
// Thread-safety: one thread at a time.
class Acceptor {
 public:
  // The pause of a listener that had no descriptor for a connection.
  static constexpr std::chrono::milliseconds kPause{100};

  // `where`: begins the line in the log ("rpc").
  explicit Acceptor(std::string where) : where_(std::move(where)) {}

  // The next waiting connection, close-on-exec and non-blocking. Empty: there is none, or
  // starved(). `make_room` closes an unauthenticated peer where a connection waits and there is no
  // descriptor for it; false: none is closed. It may throw, and is called a bounded number of
  // times.
  UniqueFd next(int listener, const std::function<bool()>& make_room = {});
  // Whether the last next() found a connection, but neither descriptor nor memory for it, nor room.
  bool starved() const { return error_ != 0; }
  int error() const { return error_; }  // errno at that time, for make_room, too; 0

  // Whether the listener should not be polled now: after starving it stays ready all the time, and
  // there is no event for free descriptors. False once the pause is over, and starved() as well.
  bool paused();
  Deadline pause() const { return pause_; }  // while paused(): the remaining time

 private:
  std::string where_;
  int error_ = 0;
  uint64_t failures_ = 0;
  Deadline pause_ = Deadline::after({});
};

}  // namespace lockstep::wire
