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

// Every function is collective where nothing else is said. "Host" is who shares a memory: on devices each rank is one.
class HostCopy {
 public:
  // copies[r]: which copy rank r shares. In the memory of hosts, ranks of one host only; empty: its host's. On devices
  // each copy is divided among as many ranks that follow each other; empty: one, among all. Null where the engine has no
  // such memory, or ranks_by_host() says nothing. Throws InvalidArgument for other copies.
  static std::unique_ptr<HostCopy> make(Communicator& comm, std::span<const int> copies = {});
  virtual ~HostCopy() = default;
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // Whether each rank is a host, and what ranks exchange is on streams.
  virtual bool apart() const = 0;
  // Whether this rank is the one whose values its host begins with.
  virtual bool writes() const = 0;
  virtual int sharers() const = 0;           // ranks of this host
  virtual int hosts() const = 0;             // that divide a copy
  virtual int keepers() const { return 1; }  // hosts that keep the same of copies that are divided
  virtual Communicator& parts() { return comm_; }  // all ranks, in the order of their parts
  // Zeroed memory. `comes_and_goes`: keep(), claim() and release() will be asked for it.
  virtual at::Tensor empty(int64_t numel, at::ScalarType dtype, bool comes_and_goes) = 0;
  // Gives all hosts what rank 0 has written into each of these; returns when all may read it.
  virtual void spread(std::span<const at::Tensor> flats) = 0;
  // Every rank has written its part of each, of size() equal ones; returns when all may read the whole.
  virtual void publish(std::span<const at::Tensor> flats) = 0;

  // A part at a time, among several hosts. What the host keeps of it. Does not communicate.
  virtual KeptFlat keep(const at::Tensor& flat) const = 0;
  // This rank's part, where it is kept. Does not communicate.
  virtual at::Tensor own_part(const KeptFlat& flat) const = 0;
  // Every rank has written its part: returns when what hosts keep has them.
  virtual void join(std::span<const KeptFlat> /*flats*/) {}
  // Somebody may have written into the whole. Does not communicate.
  virtual void take_back(const KeptFlat& /*flat*/) const {}
  // Starts to fetch what other hosts have written; on the one that writes(), nothing on the others.
  // The hosts' calls are compared by `what`.
  virtual std::vector<Work> start_fetch(std::span<const KeptFlat> flats,
                                        const std::string& what) = 0;
  // All ranks of this host are here, each by the same way: `what`, and `way`, which stands for all that it
  // did before. Throws Mismatch.
  virtual void meet(const std::string& /*what*/, uint64_t /*way*/) {}
  // There is memory again for what the others have written, or it takes none any more: what the current stream was
  // given before may use it. One rank's call does it for the host. They do not communicate.
  virtual void claim(const at::Tensor& /*flat*/) const {}
  virtual void release(const at::Tensor& flat) const noexcept = 0;
  // Neither the hosts nor this one's ranks have anything to expect of each other any more. Does not
  // communicate.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  explicit HostCopy(Communicator& comm) : comm_(comm) {}

  Communicator comm_;
};

}  // namespace lockstep::internal
