// Parameters that lie once a host: memory that is one for all ranks there. Not used directly: see
// zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::internal {

// How many ranks each host has, by the hosts' order in the group; hosts[r] is rank r's. Nothing where
// the ranks of a host do not follow each other.
std::optional<std::vector<int>> ranks_by_host(std::span<const int> hosts);

// Every function is collective.
class HostCopy {
 public:
  // Null where the engine has no such memory, or ranks_by_host() says nothing.
  static std::unique_ptr<HostCopy> make(Communicator& comm);

  // Whether this rank is the one whose values its host begins with.
  bool writes() const { return first_of_host_; }
  int sharers() const { return ranks_[static_cast<size_t>(host_)]; }  // ranks of this host
  // Zeroed memory.
  at::Tensor empty(int64_t numel, at::ScalarType dtype);
  // Gives all hosts what rank 0 has written into each of these; returns when all may read it.
  void spread(std::span<const at::Tensor> flats);
  // Every rank has written its part of each, of size() equal ones; returns when all may read the whole.
  void publish(std::span<const at::Tensor> flats);

 private:
  HostCopy(Communicator& comm, std::vector<int> ranks, int host, bool first);

  Communicator comm_;
  std::vector<int> ranks_;  // by host
  int host_;                // this rank's place among them
  bool first_of_host_;
  std::optional<Communicator>
      between_;  // the hosts' first ranks; none on the others, or on one host
};

}  // namespace lockstep::internal
