// UnauthenticatedPeers: connections whose other ends have not proved the job's secret yet: how many
// there may be, and which one to close. Used by Listener.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace lockstep::inline v0::wire {

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

}  // namespace lockstep::inline v0::wire
