// Parameters that lie once a memory: of a host, which is one for all ranks there, or of a rank's device; and what
// of it they exchange. Not used directly: see zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"

namespace lockstep::internal {

// How many ranks each host has, by the hosts' order in the group; hosts[r] is rank r's. Nothing where
// the ranks of a host do not follow each other.
std::optional<std::vector<int>> ranks_by_host(std::span<const int> hosts);

// A bucket's parameters, and what of them stays where they lie: a part of `whole`, or on a device memory of its own, so
// that `whole` can go.
struct KeptFlat {
  at::Tensor whole, own;
};

// Every function is collective where nothing else is said. "Host" is who shares a copy: on devices each rank is one.
class HostCopy {
 public:
  // copies[r]: which copy rank r shares, ranks of one host only; empty: its host's. Null where the
  // engine has no such memory, or ranks_by_host() says nothing. Throws InvalidArgument for other copies, and for any on
  // devices.
  static std::unique_ptr<HostCopy> make(Communicator& comm, std::span<const int> copies = {});

  // Whether this rank is the one whose values its host begins with.
  bool writes() const { return first_of_host_; }
  int sharers() const { return ranks_[static_cast<size_t>(host_)]; }  // ranks of this host
  int hosts() const { return static_cast<int>(ranks_.size()); }
  // Zeroed memory. `comes_and_goes`: keep(), claim() and release() will be asked for it.
  at::Tensor empty(int64_t numel, at::ScalarType dtype, bool comes_and_goes);
  // Gives all hosts what rank 0 has written into each of these; returns when all may read it.
  void spread(std::span<const at::Tensor> flats);
  // Every rank has written its part of each, of size() equal ones; returns when all may read the whole.
  void publish(std::span<const at::Tensor> flats);

  // A part at a time, among several hosts. The elements that this host's ranks write, [first, second).
  std::pair<int64_t, int64_t> own_range(const at::Tensor& flat) const;
  // What the host keeps of it. Does not communicate.
  KeptFlat keep(const at::Tensor& flat) const;
  // Somebody may have written into the whole. Does not communicate.
  void take_back(const KeptFlat& flat) const;
  // Starts to fetch what other hosts have written; on the one that writes(), nothing on the others.
  // The hosts' calls are compared by `what`.
  std::vector<Work> start_fetch(std::span<const KeptFlat> flats, const std::string& what);
  // All ranks of this host are here, each by the same way: `what`, and `way`, which stands for all that it
  // did before. Throws Mismatch.
  void meet(const std::string& what, uint64_t way);
  // There is memory again for what the others have written, or it takes none any more: what the current stream was
  // given before may use it. One rank's call does it for the host. They do not communicate.
  void claim(const at::Tensor& flat) const;
  void release(const at::Tensor& flat) const noexcept;
  // Neither the hosts nor this one's ranks have anything to expect of each other any more. Does not
  // communicate.
  void abort(const std::string& reason) noexcept;

 private:
  HostCopy(Communicator& comm, std::vector<int> ranks, int host, bool first, bool own_copies);

  int64_t first_rank() const;

  Communicator comm_;
  std::vector<int> ranks_;  // by host
  bool own_copies_;         // of the caller's choice
  int host_;                // this rank's place among them
  bool first_of_host_;
  bool device_;  // a rank has its own memory
  // The hosts' first ranks, none on the others; and this host's. None where there is one host.
  std::optional<Communicator> between_, inside_;
};

}  // namespace lockstep::internal
