// Strangers: connections whose other ends have not proved the job's secret yet. What every listener
// does with them: how many there may be, which one gives way, and what happens where descriptors
// run out.
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

// Where a connection comes from: "process 123" where the kernel knows (a Unix socket), the address
// without its port over TCP, "" where neither is known any more.
std::string source_of(int fd);

// At most `wanted`, and at most half of the descriptors that this process may have (RLIMIT_NOFILE):
// the other half is for those who have proved the secret.
size_t most_unauthenticated(size_t wanted);

// Whether the `count`-th of many like lines is written: the 1st, the 10th, the 100th ... Whoever
// knocks shall not fill the log.
bool worth_a_line(uint64_t count);

// Which stranger gives way. A storm comes from few places, so it is one of the place that most of
// them come from, there the oldest: who comes from elsewhere has the time it needs. Pure; not
// thread-safe.
class UnauthenticatedPeers {
 public:
  explicit UnauthenticatedPeers(size_t most) : most_(most) {}

  // Later ones have larger numbers.
  void add(uint64_t id, const std::string& source);
  // It has proved the secret, or is closed. Nothing where it is unknown.
  void remove(uint64_t id);
  bool too_many() const { return sources_.size() > most_; }
  // Who is to be closed first; none where there are no strangers. It stays until it is removed.
  std::optional<uint64_t> first_to_go() const;
  std::optional<uint64_t> oldest() const;
  size_t size() const { return sources_.size(); }

 private:
  size_t most_;
  std::map<uint64_t, std::string> sources_;
  std::map<std::string, std::set<uint64_t>> of_source_;
};

// Accepts connections of a listener that is polled. Not thread-safe.
class Acceptor {
 public:
  // How long a listener rests for which there was no descriptor.
  static constexpr std::chrono::milliseconds kPause{100};

  // `where`: begins the line in the log ("rpc").
  explicit Acceptor(std::string where) : where_(std::move(where)) {}

  // The next connection that waits, close-on-exec and non-blocking. Empty: none does, or starved().
  // `make_room` closes a stranger where one waits and there is no descriptor for it; false: none is
  // closed. It may throw, and is asked a bounded number of times.
  UniqueFd next(int listener, const std::function<bool()>& make_room = {});
  // The last next() found a connection, but no descriptor or memory for it, nor room.
  bool starved() const { return error_ != 0; }
  int error() const { return error_; }  // errno then, for make_room, too; 0

  // Whether the listener is better not polled now: after starving it stays ready all the time, and
  // nobody says when there are descriptors again. False once the pause is over, and starved() as
  // well.
  bool paused();
  Deadline pause() const { return pause_; }  // while paused(): how long

 private:
  std::string where_;
  int error_ = 0;
  uint64_t failures_ = 0;
  Deadline pause_ = Deadline::after({});
};

}  // namespace lockstep::wire
